"""The files of the newest snapshot, and their contents. Shown only while the app's own token may read them."""

import re
from contextlib import ExitStack
from typing import Any

from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import register_converter
from django.urls.converters import PathConverter
from django.utils.cache import get_conditional_response
from django.utils.http import content_disposition_header
from ninja import Field, Router, Schema

from docora.api.auth import app_of
from docora.api.ranges import span_of
from docora.api.reading import readable_watch
from docora.api.schemas import REFUSED, REMOTE, Cursor, Limit, Problem
from docora.limits import seats
from docora.short_requests import SHORT
from repositories.models import Watch
from snapshots import content, feed
from snapshots.content import Content, Span
from snapshots.models import FileVersion

router = Router(tags=["repositories"])

READING = {403: Problem, **REFUSED, 410: Problem, **REMOTE}
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
    digest: str = Field(description="Of what the app has acknowledged: that of this list, once it has all of it.")
    next_cursor: str | None


@router.get("/repositories/{repository_id}/files", response={200: FilePage, **READING})
def list_files(request: HttpRequest, repository_id: str, cursor: Cursor = "", limit: Limit = 500) -> dict[str, Any]:
    """The files of the newest snapshot that the watch's options choose.

    All pages of one list are of one commit. A page may be shorter than asked for and still not be the last.
    """
    watch = readable_watch(app_of(request), repository_id)
    page = feed.files(watch, cursor, limit)
    return {
        "commit_sha": page.commits.get(page.following.sequence),
        "files": [facts(item) for item in page.items],
        "digest": watch.digest,
        "next_cursor": None if page.is_last else feed.cursor_for(watch, page.following),
    }


def facts(item: feed.Item) -> dict[str, Any]:
    path = {"path": item.path.text, "path_base64": item.path.exact}
    return path | {"sha": item.sha256.hex() or None, "size": item.size}


@router.get(
    "/repositories/{repository_id}/files/{any_path:path}",
    response={200: None, 206: None, 304: None, **READING, 416: Problem},
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


class _Download(StreamingHttpResponse):
    """Has its seat until all is sent, or the client has gone."""

    def __init__(self, content: Content, *, seat: ExitStack, **options: Any) -> None:
        super().__init__(content, **options)
        self._seat = seat

    def close(self) -> None:
        super().close()
        self._seat.close()


def _download(watch: Watch, version: FileVersion, part: Span | None) -> StreamingHttpResponse:
    """Bytes for a program. To a browser they are an attachment: a hosted page must not run in our origin."""
    span = part or Span(0, version.size)
    with ExitStack() as seat:
        if span.size > SHORT:  # the client may be slow, and keeps a thread for so long
            seat.enter_context(seats.calling(watch.app))
        sent = Content(watch.repository.clone_key, version.blob, span)
        kept = seat.pop_all()
    response = _Download(
        sent,
        seat=kept,
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
