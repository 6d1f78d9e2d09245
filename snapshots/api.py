"""The client app's reading room: the state of its watches, files, changes and deliveries.

Files, contents and changes are shown only after the remote has accepted this app's own token recently.
The doors are added to the router of the room below: one path may have methods from both.
"""

import base64
import re
from datetime import datetime
from typing import Annotated, Any, Literal

from django.conf import settings
from django.db.models import Count, F
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import register_converter
from django.urls.converters import PathConverter
from django.utils import timezone
from django.utils.cache import get_conditional_response
from django.utils.http import content_disposition_header
from ninja import Field, Query, Schema

from repositories import cursors, long_poll
from repositories.api import (
    CURSOR,
    REFUSED,
    REMOTE,
    UNKNOWN,
    Cursor,
    Limit,
    Problem,
    WatchedRepository,
    app_of,
    identity,
    router,
)
from repositories.models import Repository, Watch, WatchStatus
from repositories.services import watch_of
from snapshots import content, feed
from snapshots.content import Content, Span
from snapshots.models import FileVersion, Parked, Snapshot
from snapshots.ranges import span_of
from snapshots.reading import readable_watch
from snapshots.reasons import sentence_of

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
            cooldown_until=until if until and until > timezone.now() else None,
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
    parked: int = Field(description="Files that the endpoint refused. `synced` says that every other one was accepted.")
    last_error: LastError | None
    circuit: Circuit

    @classmethod
    def of_watch(cls, watch: Watch, newest: Snapshot | None, parked: int) -> "RepositoryState":
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
            parked=parked,
            last_error=_last_error(watch),
            circuit=Circuit.of(repository),
        )


def _last_error(watch: Watch) -> LastError | None:
    if watch.last_error_code:
        return LastError(code=watch.last_error_code, message=watch.last_error)
    code = watch.repository.last_error_code
    return LastError(code=code, message=sentence_of(code)) if code else None


class LeftOut(Schema):
    path: str
    reason: str = Field(description="`submodule` or `too-large`")
    size: int | None = None


class RepositoryDetails(RepositoryState):
    left_out: list[LeftOut] = Field(description="What no app is told of the newest snapshot; the first of them.")


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
    newest, parked = _newest_snapshots(page), _count_parked(page)
    return {
        "repositories": [
            RepositoryState.of_watch(watch, newest.get(watch.repository_id), parked.get(watch.pk, 0))
            for watch in page[:limit]
        ],
        "next_cursor": cursors.encode("watches", page[limit - 1].pk) if len(page) > limit else None,
    }


@router.get("/repositories/{repository_id}", response={200: RepositoryDetails, **UNKNOWN})
def show_repository(request: HttpRequest, repository_id: str) -> dict[str, Any]:
    """One watched repository: how far Docora is, how far the app is, and what went wrong last."""
    watch = watch_of(app_of(request), repository_id)
    newest = _newest_snapshots([watch]).get(watch.repository_id)
    left_out = newest.left_out if newest and not watch.access_denied_at else []
    state = RepositoryState.of_watch(watch, newest, watch.parked.count())
    return {**state.model_dump(), "left_out": left_out}


def _count_parked(watches: list[Watch]) -> dict[int, int]:
    parked = Parked.objects.filter(watch__in=[watch.pk for watch in watches]).order_by()
    return dict(parked.values_list("watch").annotate(Count("pk")))


def _newest_snapshots(watches: list[Watch]) -> dict[int, Snapshot]:
    ids = [watch.repository_id for watch in watches]
    newest = Snapshot.objects.filter(repository__in=ids, sequence=F("repository__sequence"))
    return {snapshot.repository_id: snapshot for snapshot in newest.defer("left_out")}


_READING = {403: Problem, **REFUSED, 410: Problem, **REMOTE}
_BINARY = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}


class _AnyPath(PathConverter):
    """Django's own stops at a line break, which a path of git may have."""

    regex = r"(?s:.+)"


register_converter(_AnyPath, "any_path")


class NamedFile(Schema):
    path: str = Field(description="A byte that is not UTF-8 appears as %XX; `path_base64` has the exact bytes then.")
    path_base64: str | None = None
    size: int


class FileFacts(NamedFile):
    sha: str = Field(description="SHA-256 of the content, in hex.")


class FilePage(Schema):
    commit_sha: str | None
    files: list[FileFacts]
    next_cursor: str | None


class ChangeFacts(NamedFile):
    sha: str | None = Field(description="Of a deletion: what the file contained last, unless it was too large.")
    event: feed.Event
    previous_sha: str | None = Field(description="What an update replaces.")
    commit_sha: str


class ChangePage(Schema):
    changes: list[ChangeFacts]
    cursor: str = Field(description="Give it as `since` to go on from here, now or in some days.")
    has_more: bool = Field(description="There is more to be read already.")


@router.get("/repositories/{repository_id}/files", response={200: FilePage, **_READING})
def list_files(request: HttpRequest, repository_id: str, cursor: Cursor = "", limit: Limit = 500) -> dict[str, Any]:
    """The files of the newest snapshot that the watch's options choose.

    All pages of one list are of one commit. A page may be shorter than asked for and still not be the last.
    """
    watch = readable_watch(app_of(request), repository_id)
    page = feed.files(watch, cursor, limit)
    return {
        "commit_sha": page.commits.get(page.following.sequence),
        "files": [_facts(item) for item in page.items],
        "next_cursor": None if page.is_last else feed.cursor_for(watch, page.following),
    }


def _facts(item: feed.Item) -> dict[str, Any]:
    exact = None if item.path.is_text else base64.b64encode(item.path.raw).decode()
    return {"path": item.path.text, "path_base64": exact, "sha": item.sha256.hex() or None, "size": item.size}


@router.get(
    "/repositories/{repository_id}/files/{any_path:path}",
    response={200: None, 206: None, 304: None, **_READING, 416: Problem},
    openapi_extra={"responses": {200: _BINARY, 206: _BINARY}},
)
def read_file(request: HttpRequest, repository_id: str, path: str) -> HttpResponseBase:
    """The content of a file at the newest snapshot, whole or a `Range` of it. The `ETag` is its SHA-256.

    A byte of the path that is not UTF-8 is written as in the list of files, as %XX.
    """
    watch = readable_watch(app_of(request), repository_id)
    version = content.find(watch, path)
    etag = f'"{bytes(version.sha256).hex()}"'
    unchanged = get_conditional_response(request, etag=etag)
    if unchanged is not None:
        unchanged["ETag"] = etag
        return unchanged
    wanted = request.headers.get("Range", "") if request.headers.get("If-Range", etag) == etag else ""
    response = _download(watch, version, span_of(wanted, version.size))
    response["ETag"] = etag
    response["Content-Disposition"] = _disposition(path)
    return response


def _download(watch: Watch, version: FileVersion, part: Span | None) -> StreamingHttpResponse:
    """Bytes for a program. To a browser they are an attachment: a hosted page must not run in our origin."""
    span = part or Span(0, version.size)
    response = StreamingHttpResponse(
        Content(watch.repository.clone_key, version.blob, span),
        status=206 if part else 200,
        content_type="application/octet-stream",
        headers={
            "Content-Length": str(span.size),
            "Accept-Ranges": "bytes",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "default-src 'none'; sandbox",
            "Cache-Control": "private, no-cache",
            "X-Docora-Commit-Sha": watch.repository.commit_sha,
        },
    )
    if part:
        response["Content-Range"] = f"bytes {span.start}-{span.stop - 1}/{version.size}"
    return response


def _disposition(path: str) -> str:
    name = re.sub(r"[\x00-\x1f\x7f]", "_", path.rpartition("/")[2])
    return content_disposition_header(as_attachment=True, filename=name or "file") or "attachment"


@router.get("/repositories/{repository_id}/changes", response={200: ChangePage, **_READING})
def list_changes(
    request: HttpRequest,
    repository_id: str,
    since: Annotated[str, Query(**CURSOR, description="`cursor` of the answer before.")] = "",
    wait: Annotated[int, Query(ge=0, le=30, description="Seconds to wait while there is nothing new.")] = 0,
    limit: Limit = 500,
) -> dict[str, Any]:
    """What changed, to be pulled instead of waiting for webhooks.

    Without `since`: every file of the newest snapshot as created, page by page, and then each change. A page
    may be empty although there is more. The answer to `wait` may come early, and empty.
    """
    watch = readable_watch(app_of(request), repository_id)
    page = feed.changes(watch, since, limit)
    if page.is_last and not page.items:
        newest = Repository.objects.filter(pk=watch.repository_id)
        long_poll.wait_until(lambda: not newest.filter(sequence=watch.repository.sequence).exists(), seconds=wait)
        watch = readable_watch(app_of(request), repository_id)
        page = feed.changes(watch, since, limit)
    return {
        "changes": [_change(page, item) for item in page.items],
        "cursor": feed.cursor_for(watch, page.following),
        "has_more": not page.is_last,
    }


def _change(page: feed.Page, item: feed.Item) -> dict[str, Any]:
    previous = item.previous.hex() or None
    return {**_facts(item), "event": item.event, "previous_sha": previous, "commit_sha": page.commit_of(item)}
