"""The client app's door: watch, unwatch, change the token."""

from datetime import datetime

from django.http import HttpRequest
from ninja import Field, Router, Schema, Status
from ninja.security import HttpBearer

from repositories import services
from repositories.models import App, Watch

router = Router(tags=["repositories"])


class BearerToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> App | None:
        return App.with_bearer(token)


class Problem(Schema):
    """An RFC 9457 problem document, with the `error` that older clients read."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str
    code: str


_TOKEN = Field("", max_length=2000, pattern=r"^[!-~]*$", description="A token that may read the repository.")


class WatchRequest(Schema):
    github_url: str = Field(max_length=2000, examples=["https://github.com/owner/name"])
    github_token: str | None = _TOKEN


class TokenRequest(Schema):
    github_token: str = Field(min_length=1, max_length=2000, pattern=r"^[!-~]+$")


class WatchedRepository(Schema):
    repository_id: str
    github_url: str
    owner: str
    name: str
    is_private: bool
    created_at: datetime

    @classmethod
    def of(cls, watch: Watch) -> "WatchedRepository":
        repository = watch.repository
        return cls(
            repository_id=repository.public_id,
            github_url=repository.url,
            owner=repository.owner,
            name=repository.name,
            is_private=repository.is_private,
            created_at=watch.created_at,
        )


class Message(Schema):
    message: str


_ERRORS = {401: Problem, 404: Problem, 422: Problem, 503: Problem}


@router.post("/repositories", response={201: WatchedRepository, **_ERRORS})
def watch(request: HttpRequest, body: WatchRequest) -> Status[WatchedRepository]:
    """Watch a repository. Every file of it is delivered to the app's webhook, then every change."""
    made = services.watch(_app(request), body.github_url, token=body.github_token or "")
    return Status(201, WatchedRepository.of(made))


@router.delete("/repositories/{repository_id}", response={204: None, 401: Problem, 404: Problem})
def unwatch(request: HttpRequest, repository_id: str) -> Status[None]:
    """Stop watching. Nothing more is delivered, and what was delivered is forgotten."""
    services.unwatch(_app(request), repository_id)
    return Status(204, None)


@router.patch("/repositories/{repository_id}/token", response={200: Message, **_ERRORS})
def change_token(request: HttpRequest, repository_id: str, body: TokenRequest) -> Message:
    """Use another token from now on. What was delivered stays delivered."""
    services.change_token(_app(request), repository_id, body.github_token)
    return Message(message="Token updated successfully")


def _app(request: HttpRequest) -> App:
    app: App = request.auth  # type: ignore[attr-defined]
    return app
