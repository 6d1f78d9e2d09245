"""Watch and unwatch a repository, change the token, and see how far Docora and the app are."""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.conf import settings
from django.db.models import F
from django.http import HttpRequest, HttpResponse
from ninja import Field, Query, Router, Schema, Status
from pydantic import AfterValidator, model_validator
from redis import RedisError

from docora.api.auth import app_of, spent_by
from docora.api.reading import watch_to_show
from docora.api.schemas import REFUSED, REMOTE, UNKNOWN, Cursor, Limit, Message, Problem, WholeNumber
from docora.api.unknown_fields import RequestBody
from docora.limits import rate, seats
from repositories import access, circuit, hints, watches
from repositories.base import cursors
from repositories.errors import QueueUnavailable, sentence_for
from repositories.git.refs import LONGEST_NAME, check_ref_name
from repositories.models import Repository, Watch, WatchStatus
from repositories.selection import LONGEST_GLOB, MOST_GLOBS, Selection, check_glob
from repositories.watches import ask_for_snapshot, held_watch
from snapshots import dry_run
from snapshots.acknowledged import count_acknowledged, count_parked
from snapshots.delivery import redelivery
from snapshots.models import Snapshot

router = Router(tags=["repositories"])

DRY_RUN_PATIENCE = 20.0

Token = Annotated[str, Field(max_length=2000, pattern=r"^[!-~]*$")]
Glob = Annotated[str, Field(min_length=1, max_length=LONGEST_GLOB), AfterValidator(check_glob)]
Globs = Annotated[list[Glob], Field(max_length=MOST_GLOBS)]
FileSize = Annotated[WholeNumber, Field(ge=1, le=2**53)]
RefName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(check_ref_name)]
Url = Annotated[str, Field(max_length=2000, examples=["https://github.com/owner/name"])]


class WatchOptions(RequestBody):
    github_url: Url
    github_token: Token | None = Field("", description="A token that may read the repository.")
    branch: RefName | None = Field(None, description="A branch or tag; nothing: the remote's default branch.")
    include: Globs = Field([], description="Only files that match one of these, such as `docs/**/*.md`.")
    exclude: Globs = Field([], description="No files that match one of these.")
    max_file_size: FileSize | None = Field(None, description="Larger files are left out (bytes).")

    @model_validator(mode="before")
    @classmethod
    def _accept_alias(cls, body: Any) -> Any:
        """`url` says the same as `github_url`, which older clients send for any host."""
        if isinstance(body, dict) and "github_url" not in body and "url" in body:
            return {"github_url" if name == "url" else name: value for name, value in body.items()}
        return body

    @property
    def options(self) -> dict[str, Any]:
        selection = Selection(
            include=tuple(self.include), exclude=tuple(self.exclude), max_file_size=self.max_file_size
        )
        return {"token": self.github_token or "", "ref": self.branch or "", "selection": selection}


class WatchRequest(WatchOptions):
    dry_run: bool = Field(False, description="Watch nothing; answer what the first sync would send.")


class EnsureRequest(WatchOptions):
    github_token: Token | None = Field("", description="Nothing: an existing watch keeps the one that it has.")


class OptionsRequest(RequestBody):
    """What is not given stays as it is; null takes an option away."""

    include: Globs | None = None
    exclude: Globs | None = None
    max_file_size: FileSize | None = None

    @property
    def changes(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.model_fields_set if name in type(self).model_fields}
        return {name: value if name == "max_file_size" else tuple(value or ()) for name, value in given.items()}


class DryRun(Schema):
    """What the first sync would send."""

    commit_sha: str | None
    files: int
    bytes: int


class TokenRequest(RequestBody):
    github_token: str = Field(min_length=1, max_length=2000, pattern=r"^[!-~]+$")


AppState = Literal["enabled", "disabled"]


class WatchedRepository(Schema):
    repository_id: str
    github_url: str
    owner: str
    name: str
    is_private: bool = Field(description="True also where the host could not be asked without a token.")
    created_at: datetime
    status: WatchStatus
    app_state: AppState = Field(description="`disabled`: nothing is sent until the operator enables the app.")

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
        "status": WatchStatus(watch.status),
        "app_state": "disabled" if watch.app.disabled_at else "enabled",
    }


class LastError(Schema):
    code: str
    message: str


class Circuit(Schema):
    status: Literal["closed", "open"]
    consecutive_failures: int
    threshold: int
    cooldown_until: datetime | None = Field(description="The probe comes then at the latest; nothing: it is closed.")
    next_probe_at: datetime | None = Field(
        description="When the repository is asked again; of a host that did not answer, before the cooldown is over."
    )

    @classmethod
    def of(cls, repository: Repository) -> "Circuit":
        """Open until a probe has succeeded, also while the probe is due."""
        return cls(
            status="open" if repository.circuit_open_until else "closed",
            consecutive_failures=repository.consecutive_failures,
            threshold=settings.CIRCUIT_BREAKER_THRESHOLD,
            cooldown_until=repository.circuit_open_until,
            next_probe_at=circuit.next_probe(repository),
        )


class RepositoryState(WatchedRepository):
    """A watched repository: what was asked for, what Docora has of it, what the app has of it."""

    branch: str | None = Field(description="What was asked for; nothing: the remote's default branch.")
    ref_name: str | None = Field(description="The branch or tag that this stands for now, as in the webhooks.")
    include: list[str]
    exclude: list[str]
    max_file_size: int | None
    commit_sha: str | None
    files: int | None
    bytes: int | None
    last_checked_at: datetime | None
    synced_commit: str | None
    synced_at: datetime | None
    retry_count: int
    retry_at: datetime | None
    acknowledged: int = Field(description="Files that the endpoint accepted and that the app has now.")
    parked: int = Field(description="Files that the endpoint refused. `synced` says that every other one was accepted.")
    digest: str = Field(description="One number for all that the app has acknowledged and has now: see receivers.md.")
    last_error: LastError | None
    circuit: Circuit

    @classmethod
    def of_watch(cls, watch: Watch, known: Snapshot | None, acknowledged: int, parked: int) -> "RepositoryState":
        repository = watch.repository
        return cls(
            **identity(watch),
            branch=repository.ref or None,
            ref_name=(known.branch or None) if known else None,
            include=watch.include,
            exclude=watch.exclude,
            max_file_size=watch.max_file_size,
            commit_sha=known.commit_sha if known else None,
            files=known.files if known else None,
            bytes=known.bytes if known else None,
            last_checked_at=repository.last_checked_at,
            synced_commit=watch.synced_commit or None,
            synced_at=watch.synced_at,
            retry_count=watch.retry_count,
            retry_at=watch.retry_at,
            acknowledged=acknowledged,
            parked=parked,
            digest=watch.digest,
            last_error=_last_error(watch),
            circuit=Circuit.of(repository),
        )


def _last_error(watch: Watch) -> LastError | None:
    if watch.last_error_code:
        return LastError(code=watch.last_error_code, message=watch.last_error)
    code = watch.repository.last_error_code
    return LastError(code=code, message=sentence_for(code)) if code else None


class LeftOut(Schema):
    path: str
    reason: str = Field(description="`submodule` or `too-large`")
    size: int | None = None


class RepositoryDetails(RepositoryState):
    left_out: list[LeftOut] = Field(description="What no app is told of the newest snapshot; the first of them.")


class RepositoryPage(Schema):
    repositories: list[RepositoryState]
    next_cursor: str | None


OnlyStatus = Annotated[WatchStatus | None, Query(description="Only watches in this state.")]


@router.get("/repositories", response={200: RepositoryPage, **REFUSED})
def list_repositories(
    request: HttpRequest, status: OnlyStatus = None, cursor: Cursor = "", limit: Limit = 100
) -> dict[str, Any]:
    """What this app watches, oldest watch first. No host is asked: commit and counts may be those of the last proof."""
    after = cursors.decode(cursor, count=1)[1][0] if cursor else 0
    watches = Watch.objects.filter(app=app_of(request), pk__gt=after).select_related("app", "repository")
    if status:
        watches = watches.filter(status=status)
    page = list(watches.order_by("pk")[: limit + 1])
    known, acknowledged, parked = _known_snapshots(page), count_acknowledged(page), count_parked(page)
    return {
        "repositories": [
            RepositoryState.of_watch(watch, known.get(watch.pk), acknowledged[watch.pk], parked.get(watch.pk, 0))
            for watch in page[:limit]
        ],
        "next_cursor": cursors.encode("watches", page[limit - 1].pk) if len(page) > limit else None,
    }


@router.get("/repositories/{repository_id}", response={200: RepositoryDetails, **UNKNOWN})
def show_repository(request: HttpRequest, repository_id: str) -> dict[str, Any]:
    """One watched repository: how far Docora is, how far the app is, and what went wrong last."""
    watch = watch_to_show(app_of(request), repository_id)
    known = _known_snapshots([watch]).get(watch.pk)
    return {**_state(watch, known).model_dump(), "left_out": known.left_out if known else []}


def _state(watch: Watch, known: Snapshot | None) -> RepositoryState:
    return RepositoryState.of_watch(watch, known, count_acknowledged([watch])[watch.pk], watch.parked.count())


def _known_snapshots(watches: list[Watch]) -> dict[int, Snapshot]:
    """The newest snapshot that each watch's app may know: taken before the proof of its access ended."""
    snapshots = Snapshot.objects.defer("left_out")
    ids = [watch.repository_id for watch in watches]
    rows = snapshots.filter(repository__in=ids, sequence=F("repository__sequence"))
    newest = {snapshot.repository_id: snapshot for snapshot in rows}
    known = {}
    for watch in watches:
        found, until = newest.get(watch.repository_id), access.valid_until(watch)
        if found and until and found.taken_at > until:
            older = snapshots.filter(repository=watch.repository_id, taken_at__lte=until)
            found = older.order_by("sequence").last()
        if found and until:
            known[watch.pk] = found
    return known


@router.post(
    "/repositories",
    response={200: DryRun, 201: WatchedRepository, 202: Message, **REFUSED, 409: Problem, **REMOTE},
)
def watch(request: HttpRequest, body: WatchRequest, response: HttpResponse) -> Status[Any]:
    """Watch a repository. Every file of it is delivered to the app's webhook, then every change.

    Watching again what is watched already starts over, with the options that are given now. With `dry_run`
    nothing is watched: 200 says how much would be sent, 202 that counting takes longer; ask again then.
    """
    app, url, options = app_of(request), body.github_url, body.options
    if not body.dry_run:
        with seats.calling(app):
            if not watches.is_watching(app, url, body.branch or ""):
                rate.spend_for_new_watch(app, spent=spent_by(request))
            made = WatchedRepository.of(watches.watch(app, url, **options))
        return _created(request, response, made)
    question = dry_run.Question.of(app, url, **options)
    with seats.calling(app):
        if not dry_run.is_under_way(question):
            rate.spend_for_new_watch(app, spent=spent_by(request))
        dry_run.ask(question)
    seats.wait_until(lambda: dry_run.is_answered(question), seconds=DRY_RUN_PATIENCE)
    if estimate := dry_run.answer_to(question):
        found = DryRun(commit_sha=estimate.commit_sha or None, files=estimate.files, bytes=estimate.bytes)
        return Status(200, found)
    response["Retry-After"] = "5"
    return Status(202, Message(message="Still counting; ask again."))


@router.put(
    "/repositories",
    response={200: WatchedRepository, 201: WatchedRepository, **REFUSED, 409: Problem, **REMOTE},
)
def ensure(request: HttpRequest, body: EnsureRequest, response: HttpResponse) -> Status[WatchedRepository]:
    """Watch a repository with these options, unless it is watched so already: for an app that registers at its start.

    201: the watch is new, and every file is delivered. 200: it was there. With the same options nothing is sent, and no
    host is asked; with others, what they choose in addition, and a delete of what they do not choose any more.
    """
    app, url, options = app_of(request), body.github_url, body.options
    if unchanged := watches.find_unchanged(app, url, **options):
        return Status(200, WatchedRepository.of(unchanged))
    with seats.calling(app):
        if not watches.is_watching(app, url, options["ref"]):
            rate.spend_for_new_watch(app, spent=spent_by(request))
        found, is_new = watches.ensure(app, url, **options)
    made = WatchedRepository.of(found)
    return _created(request, response, made) if is_new else Status(200, made)


def _created(request: HttpRequest, response: HttpResponse, made: WatchedRepository) -> Status[WatchedRepository]:
    response["Location"] = f"{request.path.rstrip('/')}/{made.repository_id}"
    return Status(201, made)


@router.patch("/repositories/{repository_id}", response={200: RepositoryState, **REFUSED})
def change_options(request: HttpRequest, repository_id: str, body: OptionsRequest) -> RepositoryState:
    """Choose other files from now on. Only the difference is sent.

    What `include` and `exclude` do not choose any more is sent as a delete. Of a file that is larger than
    `max_file_size` the app keeps what it has. Cursors of the change feed end with 410.
    """
    watch = watches.change_options(app_of(request), repository_id, **body.changes)
    return _state(watch, _known_snapshots([watch]).get(watch.pk))


@router.delete("/repositories/{repository_id}", response={204: None, **UNKNOWN})
def unwatch(request: HttpRequest, repository_id: str) -> Status[None]:
    """Stop watching. Nothing more is delivered, and what was delivered is forgotten."""
    watches.unwatch(app_of(request), repository_id)
    return Status(204, None)


@router.patch("/repositories/{repository_id}/token", response={200: Message, **REFUSED, **REMOTE})
def change_token(request: HttpRequest, repository_id: str, body: TokenRequest) -> Message:
    """Use another token from now on. What was delivered stays delivered."""
    app = app_of(request)
    with seats.calling(app):
        watches.change_token(app, repository_id, body.github_token)
    return Message(message="Token updated successfully")


@router.delete("/repositories/{repository_id}/token", response={204: None, **REFUSED, **REMOTE})
def drop_token(request: HttpRequest, repository_id: str) -> Status[None]:
    """Read the repository without a token from now on; 422 if that is not possible. What was delivered stays so."""
    app = app_of(request)
    with seats.calling(app):
        watches.drop_token(app, repository_id)
    return Status(204, None)


@router.post("/repositories/{repository_id}/resync", response={202: Message, **UNKNOWN})
def resync(request: HttpRequest, repository_id: str) -> Status[Message]:
    """Look at the repository now and deliver every file again."""
    with held_watch(app_of(request), repository_id) as watch:
        redelivery.resync(watch)
        ask_for_snapshot(watch.repository)
    return Status(202, Message(message="Queued"))


@router.post("/repositories/{repository_id}/refresh", response={202: RepositoryState, **UNKNOWN, 503: Problem})
def refresh(request: HttpRequest, repository_id: str) -> Status[RepositoryState]:
    """Look at the repository now and deliver what differs. Answers what is known before the look.

    Calls that come together become one look.
    """
    watch = watches.watch_of(app_of(request), repository_id)
    rate.spend_for_refresh(watch)
    circuit.skip_cooldown(watch.repository)
    try:
        hints.give(watch.repository)
    except RedisError:
        raise QueueUnavailable from None
    return Status(202, _state(watch, _known_snapshots([watch]).get(watch.pk)))
