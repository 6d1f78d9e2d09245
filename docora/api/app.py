"""The app's own account: what is known of it, its webhook key, and a test of its endpoint."""

from datetime import datetime, timedelta

from django.http import HttpRequest
from ninja import Field, Router, Schema

from docora.api.auth import app_of
from docora.api.schemas import Problem, WholeNumber
from docora.api.unknown_fields import RequestBody
from docora.limits import seats
from repositories import accounts
from repositories.errors import BaseUrlFixed
from repositories.models import App, OptionalEvent
from snapshots.delivery import notices

router = Router(tags=["app"])

_ONE_DAY = 86_400


class AppDetails(Schema):
    app_id: str
    name: str
    base_url: str
    email: str
    website: str
    description: str
    max_in_flight: int
    events: list[OptionalEvent] = Field(description="The optional events that it is told.")
    created_at: datetime
    watches: int
    may_change_base_url: bool = Field(description="Whether the operator allows it.")
    previous_token_until: datetime | None = Field(description="Earlier bearer tokens are accepted until then.")
    disabled_at: datetime | None = Field(description="Since then nothing is sent; see `disabled_reason`.")
    disabled_reason: str | None


class AppChanges(RequestBody):
    base_url: str | None = Field(None, max_length=2000, description="Webhooks go to {base_url}/create, /update, …")
    events: list[OptionalEvent] | None = Field(
        None, description="The optional events to be told from now on, and no others; nothing: as it is."
    )


class RotationRequest(RequestBody):
    webhook_key: str | None = Field(None, min_length=16, max_length=500, description="Nothing: one is generated.")
    overlap_seconds: WholeNumber = Field(
        _ONE_DAY, ge=0, le=30 * _ONE_DAY, description="So long webhooks are signed with the old key, too."
    )


_GENERATED = RotationRequest(webhook_key=None, overlap_seconds=_ONE_DAY)


class RotatedKey(Schema):
    webhook_key: str = Field(description="Shown once.")
    previous_key_until: datetime | None


class TokenRotationRequest(RequestBody):
    overlap_seconds: WholeNumber = Field(
        _ONE_DAY,
        ge=0,
        le=30 * _ONE_DAY,
        description="So long the old token is accepted, too. 0: every earlier token ends now.",
    )


_WITH_OVERLAP = TokenRotationRequest(overlap_seconds=_ONE_DAY)


class RotatedToken(Schema):
    bearer_token: str = Field(description="Shown once.")
    previous_token_until: datetime | None


class PingResult(Schema):
    accepted: bool
    status: int | None
    error: str | None
    answer: str | None
    milliseconds: int


@router.get("/app", response=AppDetails)
def show_app(request: HttpRequest) -> AppDetails:
    """The app whose bearer token this is."""
    return _details(app_of(request))


@router.patch("/app", response={200: AppDetails, 403: Problem, 422: Problem, 503: Problem})
def change_app(request: HttpRequest, body: AppChanges) -> AppDetails:
    """Choose the optional events (`sync_recovered`, `sync_complete`), or another base URL where the operator allows it.

    Deliveries under way stop and go on at the new base URL; nothing that was acknowledged is sent again.
    """
    app = app_of(request)
    if body.base_url is not None:
        if not app.may_change_base_url:
            raise BaseUrlFixed
        with seats.calling(app):
            accounts.check_endpoint(body.base_url)
        accounts.change_base_url(app, body.base_url)
    if body.events is not None:
        accounts.choose_events(app, body.events)
    return _details(app)


def _details(app: App) -> AppDetails:
    return AppDetails(
        app_id=app.public_id,
        name=app.name,
        base_url=app.base_url,
        email=app.email,
        website=app.website,
        description=app.description,
        max_in_flight=app.max_in_flight,
        events=app.events,
        created_at=app.created_at,
        watches=app.watches.count(),
        may_change_base_url=app.may_change_base_url,
        previous_token_until=accounts.previous_bearer_until(app),
        disabled_at=app.disabled_at,
        disabled_reason=app.disabled_reason or None,
    )


@router.post("/app/webhook-key/rotate", response={200: RotatedKey, 422: Problem})
def rotate_webhook_key(request: HttpRequest, body: RotationRequest = _GENERATED) -> RotatedKey:
    """Sign with a new key from now on, and for a while with the old one too."""
    app = app_of(request)
    overlap = timedelta(seconds=body.overlap_seconds)
    new_key = accounts.rotate_webhook_key(app, overlap=overlap, webhook_key=body.webhook_key or "")
    return RotatedKey(webhook_key=new_key, previous_key_until=app.previous_key_until)


@router.post("/app/bearer-token/rotate", response={200: RotatedToken, 409: Problem, 422: Problem})
def rotate_bearer_token(request: HttpRequest, body: TokenRotationRequest = _WITH_OVERLAP) -> RotatedToken:
    """A new bearer token; the one that is used now works for a while yet, so that its holders can change over."""
    app = app_of(request)
    token = accounts.rotate_bearer_token(app, overlap=timedelta(seconds=body.overlap_seconds))
    return RotatedToken(bearer_token=token, previous_token_until=accounts.previous_bearer_until(app))


@router.post("/ping", response={200: PingResult, 503: Problem})
def ping(request: HttpRequest) -> PingResult:
    """Send a signed test event to {base_url}/ping now, and show what the endpoint answered. One at a time."""
    app = app_of(request)
    with seats.pinging(app):
        answer = notices.ping(app)
    return PingResult(
        accepted=answer.accepted,
        status=answer.status,
        error=answer.error or None,
        answer=answer.text or None,
        milliseconds=answer.milliseconds,
    )
