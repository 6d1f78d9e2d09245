"""The client app's door: watch, unwatch, change the token; and what all doors of the API share."""

from datetime import datetime, timedelta
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Query, Router, Schema, Status
from ninja.security import HttpBearer
from pydantic import AfterValidator, model_validator

from repositories import accounts, dry_run, rate_limit, services
from repositories.models import App, Watch
from repositories.refs import LONGEST_NAME, check_ref_name
from repositories.selection import LONGEST_GLOB, MOST_GLOBS, Selection, check_glob

router = Router(tags=["repositories"])

_ONE_DAY = 86_400


class BearerToken(HttpBearer):
    def authenticate(self, request: HttpRequest, token: str) -> App | None:
        app = App.with_bearer(token)
        if app:
            rate_limit.spend_for_app(app)
        return app


def app_of(request: HttpRequest) -> App:
    app: App = request.auth  # type: ignore[attr-defined]
    return app


class FieldProblem(Schema):
    field: str
    message: str


class Problem(Schema):
    """An RFC 9457 problem document, with the `error` that older clients read."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str = Field(description="The same as `detail`.")
    code: str = Field(description="For machines; does not change.")
    errors: list[FieldProblem] = Field([], description="What is wrong with which field.")


# The OpenAPI document adds what every call may answer: see docora.openapi.
UNKNOWN = {404: Problem}
REFUSED = {404: Problem, 422: Problem}
REMOTE = {502: Problem, 503: Problem}

Limit = Annotated[int, Query(ge=1, le=1000, description="The most items of one page.")]
CURSOR = {"max_length": 500, "pattern": "^[A-Za-z0-9_-]*$"}
Cursor = Annotated[str, Query(**CURSOR, description="`next_cursor` of the page before; nothing: from the beginning.")]

_TOKEN = Field("", max_length=2000, pattern=r"^[!-~]*$", description="A token that may read the repository.")
Glob = Annotated[str, Field(min_length=1, max_length=LONGEST_GLOB), AfterValidator(check_glob)]
Globs = Annotated[list[Glob], Field(max_length=MOST_GLOBS)]
RefName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(check_ref_name)]
Url = Annotated[str, Field(max_length=2000, examples=["https://github.com/owner/name"])]


class WatchRequest(Schema):
    github_url: Url
    github_token: str | None = _TOKEN
    branch: RefName | None = Field(None, description="A branch or tag; nothing: the remote's default branch.")
    include: Globs = Field([], description="Only files that match one of these, such as `docs/**/*.md`.")
    exclude: Globs = Field([], description="No files that match one of these.")
    max_file_size: int | None = Field(None, ge=1, le=2**53, description="Larger files are left out (bytes).")
    dry_run: bool = Field(False, description="Watch nothing; answer what the first sync would send.")

    @model_validator(mode="before")
    @classmethod
    def _accept_alias(cls, body: Any) -> Any:
        """`url` says the same as `github_url`, which older clients send for any host."""
        data = getattr(body, "_obj", body)
        if isinstance(data, dict) and "github_url" not in data and "url" in data:
            return {**data, "github_url": data["url"]}
        return body

    @property
    def selection(self) -> Selection:
        return Selection(include=tuple(self.include), exclude=tuple(self.exclude), max_file_size=self.max_file_size)


class Message(Schema):
    message: str


class DryRun(Schema):
    """What the first sync would send."""

    commit_sha: str | None
    files: int
    bytes: int


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
        return cls(**identity(watch))


def identity(watch: Watch) -> dict[str, Any]:
    repository = watch.repository
    return {
        "repository_id": repository.public_id,
        "github_url": repository.url,
        "owner": repository.owner,
        "name": repository.name,
        "is_private": repository.is_private,
        "created_at": watch.created_at,
    }


class AppDetails(Schema):
    app_id: str
    name: str
    base_url: str
    email: str
    website: str
    description: str
    max_in_flight: int
    created_at: datetime
    watches: int
    disabled_at: datetime | None = Field(description="Since then nothing is sent; see `disabled_reason`.")
    disabled_reason: str | None


class RotationRequest(Schema):
    webhook_key: str | None = Field(None, min_length=16, max_length=500, description="Nothing: one is generated.")
    overlap_seconds: int = Field(
        _ONE_DAY, ge=0, le=30 * _ONE_DAY, description="So long webhooks are signed with the old key, too."
    )


_GENERATED = RotationRequest(webhook_key=None, overlap_seconds=_ONE_DAY)


class RotatedKey(Schema):
    webhook_key: str = Field(description="Shown once.")
    previous_key_until: datetime | None


@router.post("/repositories", response={200: DryRun, 201: WatchedRepository, 202: Message, **REFUSED, **REMOTE})
def watch(request: HttpRequest, body: WatchRequest, response: HttpResponse) -> Status[Any]:
    """Watch a repository. Every file of it is delivered to the app's webhook, then every change.

    Watching again what is watched already starts over, with the options that are given now. With `dry_run`
    nothing is watched: 200 says how much would be sent, 202 that counting takes longer; ask again then.
    """
    options: dict[str, Any] = {
        "token": body.github_token or "",
        "ref": body.branch or "",
        "selection": body.selection,
    }
    if not body.dry_run:
        return Status(201, WatchedRepository.of(services.watch(app_of(request), body.github_url, **options)))
    if estimate := dry_run.estimate(app_of(request), body.github_url, **options):
        found = DryRun(commit_sha=estimate.commit_sha or None, files=estimate.files, bytes=estimate.bytes)
        return Status(200, found)
    response["Retry-After"] = "5"
    return Status(202, Message(message="Still counting; ask again."))


@router.delete("/repositories/{repository_id}", response={204: None, **UNKNOWN})
def unwatch(request: HttpRequest, repository_id: str) -> Status[None]:
    """Stop watching. Nothing more is delivered, and what was delivered is forgotten."""
    services.unwatch(app_of(request), repository_id)
    return Status(204, None)


@router.patch("/repositories/{repository_id}/token", response={200: Message, **REFUSED, **REMOTE})
def change_token(request: HttpRequest, repository_id: str, body: TokenRequest) -> Message:
    """Use another token from now on. What was delivered stays delivered."""
    services.change_token(app_of(request), repository_id, body.github_token)
    return Message(message="Token updated successfully")


@router.get("/app", response=AppDetails, tags=["app"])
def show_app(request: HttpRequest) -> AppDetails:
    """The app whose bearer token this is."""
    app = app_of(request)
    return AppDetails(
        app_id=app.public_id,
        name=app.name,
        base_url=app.base_url,
        email=app.email,
        website=app.website,
        description=app.description,
        max_in_flight=app.max_in_flight,
        created_at=app.created_at,
        watches=app.watches.count(),
        disabled_at=app.disabled_at,
        disabled_reason=app.disabled_reason or None,
    )


@router.post("/app/webhook-key/rotate", response={200: RotatedKey, 422: Problem}, tags=["app"])
def rotate_webhook_key(request: HttpRequest, body: RotationRequest = _GENERATED) -> RotatedKey:
    """Sign with a new key from now on, and for a while with the old one too."""
    app = app_of(request)
    overlap = timedelta(seconds=body.overlap_seconds)
    new_key = accounts.rotate_webhook_key(app, overlap=overlap, webhook_key=body.webhook_key or "")
    return RotatedKey(webhook_key=new_key, previous_key_until=app.previous_key_until)
