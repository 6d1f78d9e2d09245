"""Compare: what a snapshot has that an app does not have yet, and the other way round.

Found by what changed since the app's last sync, then held against what it acknowledged: a run that was
cut off halfway goes on where it stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import Exists, F, OuterRef, QuerySet, Subquery

from repositories.models import Watch
from snapshots import manifest
from snapshots.models import Delivered, FileVersion, Parked
from snapshots.paths import GitPath

_PAGE = 2000


class Event(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One message for one app: what its receiver must do with one path."""

    event: Event
    file_id: int
    path: GitPath
    sha256: bytes
    since: int
    blob: str = ""
    size: int = 0
    previous: bytes = b""


def changes_for(watch: Watch, sequence: int) -> Iterator[Change]:
    """Everything that brings the app from what it has to snapshot `sequence`: deletes, creates, updates."""
    yield from _deletes(watch, sequence)
    yield from _contents(watch, sequence, Event.CREATE)
    yield from _contents(watch, sequence, Event.UPDATE)


def _deletes(watch: Watch, sequence: int) -> Iterator[Change]:
    present = manifest.at(watch.repository_id, sequence).filter(file=OuterRef("file"))
    ended = FileVersion.objects.filter(file=OuterRef("file"), until__lte=sequence).order_by("-until").values("until")
    rows = Delivered.objects.filter(~Exists(present), watch=watch).annotate(gone_since=Subquery(ended[:1]))
    if watch.synced_sequence:
        rows = rows.filter(Exists(ended.filter(until__gt=watch.synced_sequence)))
    columns = ("file_id", "sha256", "file__path", "file__raw_path", "gone_since")
    for file_id, sha256, path, raw, since in _pages(rows.values_list(*columns)):
        yield Change(
            event=Event.DELETE,
            file_id=file_id,
            path=_path(path, raw),
            sha256=bytes(sha256),
            since=since or sequence,
        )


def _contents(watch: Watch, sequence: int, event: Event) -> Iterator[Change]:
    had = Delivered.objects.filter(watch=watch, file=OuterRef("file")).values("sha256")
    parked = Parked.objects.filter(watch=watch, file=OuterRef("file"), sha256=OuterRef("sha256"))
    rows = manifest.at(watch.repository_id, sequence).annotate(had=Subquery(had[:1]))
    rows = rows.filter(~Exists(parked), since__gt=watch.synced_sequence)
    rows = rows.filter(had=None) if event is Event.CREATE else rows.exclude(had=None).exclude(had=F("sha256"))
    columns = ("file_id", "sha256", "file__path", "file__raw_path", "blob", "size", "since", "had")
    selection = watch.selection
    for file_id, sha256, path, raw, blob, size, since, previous in _pages(rows.values_list(*columns)):
        if not selection.takes(path, size):
            continue
        yield Change(
            event=event,
            file_id=file_id,
            path=_path(path, raw),
            sha256=bytes(sha256),
            since=since,
            blob=blob,
            size=size,
            previous=bytes(previous or b""),
        )


def _pages(rows: QuerySet[Any, tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """All rows by their first column, a page at a time: no cursor stays open while acknowledgements are written."""
    last = 0
    while page := list(rows.filter(file_id__gt=last).order_by("file_id")[:_PAGE]):
        yield from page
        last = page[-1][0]


def _path(text: str, raw: bytes | None) -> GitPath:
    return GitPath(text.encode() if raw is None else bytes(raw))
