"""Which app is asking: its bearer token, and what it may still spend of this minute's allowance."""

from django.http import HttpRequest
from ninja.security import HttpBearer

from docora.limits import rate
from repositories.base import log_context
from repositories.models import App


class BearerToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> App | None:
        app = App.with_bearer(token)
        if app:
            log_context.add(app=app.public_id)
            rate.spend_for_app(app, spent=spent_by(request))
        return app


def spent_by(request: HttpRequest) -> rate.Spent:
    """The limits that this request has been counted against; the gate tells the client in the answer's headers."""
    spent: rate.Spent = request.__dict__.setdefault("spent", [])
    return spent


def app_of(request: HttpRequest) -> App:
    app: App = request.auth  # type: ignore[attr-defined]
    return app
