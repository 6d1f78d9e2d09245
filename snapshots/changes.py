"""Compare: what a snapshot has that an app does not have yet, and the other way round.

Found by what changed since the app's last sync, then held against what it acknowledged: a run that was
cut off halfway goes on where it stopped. What somebody asked to be told again counts as a change.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from django.db.models import Exists, F, FilteredRelation, OuterRef, Q, QuerySet, Subquery

from repositories.models import Watch
from repositories.selection import EVERYTHING
from snapshots import manifest
from snapshots.models import Delivered, FileVersion, Parked
from snapshots.paths import GitPath

_PAGE = 1000


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
    manual: bool = False


def changes_for(watch: Watch, sequence: int) -> Iterator[Change]:
    """Everything that brings the app from what it has to snapshot `sequence`: deletes, creates, updates."""
    has_something = Delivered.objects.filter(watch=watch).exists()
    if has_something:
        yield from _deletes(watch, sequence)
    yield from _contents(watch, sequence, Event.CREATE)
    if has_something:
        yield from _contents(watch, sequence, Event.UPDATE)


def count_changes(watch: Watch, sequence: int) -> int:
    if watch.selection != EVERYTHING:
        return sum(1 for _ in changes_for(watch, sequence))
    kept = (_kept(watch, sequence, event).count() for event in (Event.CREATE, Event.UPDATE))
    return _gone(watch, sequence).count() + sum(kept)


def _gone(watch: Watch, sequence: int) -> QuerySet[Delivered]:
    present = manifest.at(watch.repository_id, sequence).filter(file=OuterRef("file"))
    parked = Parked.objects.filter(watch=watch, file=OuterRef("file"), sha256=OuterRef("sha256"), again=False)
    rows = Delivered.objects.filter(~Exists(present), ~Exists(parked), watch=watch)
    if watch.synced_sequence:
        ended = FileVersion.objects.filter(file=OuterRef("file"), until__lte=sequence)
        rows = rows.filter(Exists(ended.filter(until__gt=watch.synced_sequence)))
    return rows


def _deletes(watch: Watch, sequence: int) -> Iterator[Change]:
    ended = FileVersion.objects.filter(file=OuterRef("file"), until__lte=sequence).order_by("-until").values("until")
    rows = _gone(watch, sequence).annotate(gone_since=Subquery(ended[:1]))
    columns = ("file_id", "sha256", "file__path", "file__raw_path", "gone_since", "again")
    for file_id, sha256, path, raw, since, again in _pages(rows.values_list(*columns)):
        yield Change(
            event=Event.DELETE,
            file_id=file_id,
            path=_path(path, raw),
            sha256=bytes(sha256),
            since=since or sequence,
            manual=bool(again),
        )


def _kept(watch: Watch, sequence: int, event: Event) -> QuerySet[FileVersion]:
    """The files of the snapshot that make this event. `held` is what the app has, `refusal` what it refused."""
    rows = manifest.contents_at(watch.repository_id, sequence).filter(since__gt=watch.synced_sequence)
    rows = rows.annotate(
        held=FilteredRelation("file__delivered", condition=Q(file__delivered__watch=watch)),
        refusal=FilteredRelation("file__parked", condition=Q(file__parked__watch=watch)),
    )
    rows = rows.filter(Q(refusal=None) | Q(refusal__again=True) | ~Q(refusal__sha256=F("sha256")))
    if event is Event.CREATE:
        return rows.filter(Q(held=None) | Q(held__again__in=[Event.CREATE, Event.DELETE]))
    return rows.filter(Q(held__again=Event.UPDATE) | (Q(held__again="") & ~Q(held__sha256=F("sha256"))))


def _contents(watch: Watch, sequence: int, event: Event) -> Iterator[Change]:
    columns = ("file_id", "sha256", "file__path", "file__raw_path", "blob", "size", "since")
    rows = _kept(watch, sequence, event).values_list(*columns, "held__sha256", "held__again", "refusal__again")
    selection = watch.selection
    for file_id, sha256, path, raw, blob, size, since, previous, again, once_more in _pages(rows):
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
            manual=bool(again or once_more),
        )


def _pages(rows: QuerySet[Any, tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """All rows by their first column, a page at a time: no cursor stays open while acknowledgements are written."""
    page = list(rows.order_by("file_id")[:_PAGE])
    yield from page
    while len(page) == _PAGE:
        page = list(rows.filter(file_id__gt=page[-1][0]).order_by("file_id")[:_PAGE])
        yield from page


def _path(text: str, raw: bytes | None) -> GitPath:
    return GitPath(text.encode() if raw is None else bytes(raw))
