"""The client app's reading room: the state of its watches, files, changes and deliveries.

Files, contents and changes are shown only after the remote has accepted this app's own token recently.
The doors are added to the router of the room below: one path may have methods from both.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.conf import settings
from django.db.models import F
from django.http import HttpRequest
from django.utils import timezone
from ninja import Query, Schema

from repositories import cursors
from repositories.api import REFUSED, UNKNOWN, Cursor, Limit, WatchedRepository, app_of, identity, router
from repositories.models import Repository, Watch, WatchStatus
from repositories.services import watch_of
from snapshots.models import Snapshot

__all__ = ["router"]


class LastError(Schema):
    code: str
    message: str


class Circuit(Schema):
    status: Literal["closed", "open"]
    consecutive_failures: int
    threshold: int
    cooldown_until: datetime | None

    @classmethod
    def of(cls, repository: Repository) -> "Circuit":
        until = repository.circuit_open_until
        return cls(
            status="open" if until and until > timezone.now() else "closed",
            consecutive_failures=repository.consecutive_failures,
            threshold=settings.CIRCUIT_BREAKER_THRESHOLD,
            cooldown_until=until,
        )


class RepositoryState(WatchedRepository):
    """A watched repository: what was asked for, what Docora has of it, what the app has of it."""

    branch: str | None
    include: list[str]
    exclude: list[str]
    max_file_size: int | None
    status: WatchStatus
    commit_sha: str | None
    files: int | None
    bytes: int | None
    last_checked_at: datetime | None
    synced_commit: str | None
    synced_at: datetime | None
    retry_count: int
    retry_at: datetime | None
    last_error: LastError | None
    circuit: Circuit

    @classmethod
    def of_watch(cls, watch: Watch, newest: Snapshot | None) -> "RepositoryState":
        repository = watch.repository
        # An app whose token is refused must not learn from us what goes on in the repository.
        shown = None if watch.access_denied_at else newest
        return cls(
            **identity(watch),
            branch=repository.ref or None,
            include=watch.include,
            exclude=watch.exclude,
            max_file_size=watch.max_file_size,
            status=WatchStatus(watch.status),
            commit_sha=shown.commit_sha if shown else None,
            files=shown.files if shown else None,
            bytes=shown.bytes if shown else None,
            last_checked_at=repository.last_checked_at,
            synced_commit=watch.synced_commit or None,
            synced_at=watch.synced_at,
            retry_count=watch.retry_count,
            retry_at=watch.retry_at,
            last_error=_last_error(watch, repository),
            circuit=Circuit.of(repository),
        )


def _last_error(*concerned: Watch | Repository) -> LastError | None:
    for row in concerned:
        if row.last_error_code:
            return LastError(code=row.last_error_code, message=row.last_error)
    return None


class RepositoryPage(Schema):
    repositories: list[RepositoryState]
    next_cursor: str | None


Status = Annotated[WatchStatus | None, Query(description="Only watches in this state.")]


@router.get("/repositories", response={200: RepositoryPage, **REFUSED})
def list_repositories(
    request: HttpRequest, status: Status = None, cursor: Cursor = "", limit: Limit = 100
) -> dict[str, Any]:
    """What this app watches, oldest watch first."""
    after = cursors.decode(cursor, count=1)[1][0] if cursor else 0
    watches = Watch.objects.filter(app=app_of(request), pk__gt=after).select_related("repository")
    if status:
        watches = watches.filter(status=status)
    page = list(watches.order_by("pk")[: limit + 1])
    newest = _newest_snapshots(page)
    return {
        "repositories": [RepositoryState.of_watch(watch, newest.get(watch.repository_id)) for watch in page[:limit]],
        "next_cursor": cursors.encode("watches", page[limit - 1].pk) if len(page) > limit else None,
    }


@router.get("/repositories/{repository_id}", response={200: RepositoryState, **UNKNOWN})
def show_repository(request: HttpRequest, repository_id: str) -> RepositoryState:
    """One watched repository: how far Docora is, how far the app is, and what went wrong last."""
    watch = watch_of(app_of(request), repository_id)
    return RepositoryState.of_watch(watch, _newest_snapshots([watch]).get(watch.repository_id))


def _newest_snapshots(watches: list[Watch]) -> dict[int, Snapshot]:
    ids = [watch.repository_id for watch in watches]
    newest = Snapshot.objects.filter(repository__in=ids, sequence=F("repository__sequence"))
    return {snapshot.repository_id: snapshot for snapshot in newest.defer("left_out")}
