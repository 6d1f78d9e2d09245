"""What a repository contains and how that changed, in pages that an app pulls at its own pace.

A page says where the next one begins. That place stays valid while new snapshots are taken: a list of
files goes on in the snapshot in which it began, and the feed tells every change once, in order. It
ends when the history that it needs is forgotten (DOCORA_HISTORY_DAYS), or when the watch is renewed with
other options: the app then starts over.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from heapq import merge
from itertools import islice
from typing import Any

from django.conf import settings
from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from repositories.base import cursors
from repositories.errors import CursorExpired
from repositories.models import Repository, Watch
from snapshots import manifest
from snapshots.changes import paths_of
from snapshots.models import FileVersion, Snapshot
from snapshots.paths import GitPath


class Event(StrEnum):
    CREATED = "created"
    UPDATED = "updated"
    DELETED = "deleted"


# What a place lies behind: a file of the whole snapshot, the deletion of a file in it, a new content in it.
_FILE, _DELETION, _CONTENT = range(3)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Behind one file, in the order in which a snapshot's changes are told."""

    sequence: int
    kind: int
    file_id: int

    @classmethod
    def before(cls, sequence: int) -> "Place":
        return cls(sequence, _DELETION, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file of a snapshot, or what became of it in that snapshot."""

    place: Place
    event: Event
    path: GitPath
    sha256: bytes
    size: int
    previous: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    items: list[Item]
    commits: dict[int, str]
    following: Place
    is_last: bool

    def commit_of(self, item: Item) -> str:
        return self.commits.get(item.place.sequence, "")


def files(watch: Watch, cursor: str, limit: int) -> Page:
    """The files of the newest snapshot; with a cursor, on in the snapshot in which the list began."""
    place = _decode(watch, cursor)
    if place.kind != _FILE:
        raise CursorExpired
    return _page_of_files(watch, place, limit)


def changes(watch: Watch, cursor: str, limit: int) -> Page:
    """Every file of the newest snapshot as created, and after it whatever changes."""
    place = _decode(watch, cursor)
    if place.kind != _FILE:
        return _page_of_changes(watch, place, limit)
    page = _page_of_files(watch, place, limit)
    if not page.is_last:
        return page
    return Page(
        items=page.items,
        commits=page.commits,
        following=Place.before(place.sequence + 1),
        is_last=place.sequence == watch.repository.sequence,
    )


def cursor_for(watch: Watch, place: Place) -> str:
    return cursors.encode(_mark(watch), place.sequence, place.kind, place.file_id)


def _decode(watch: Watch, cursor: str) -> Place:
    if not cursor:
        return Place(watch.repository.sequence, _FILE, 0)
    mark, numbers = cursors.decode(cursor, count=3)
    place = Place(*numbers)
    if mark != _mark(watch) or not _is_remembered(watch.repository, place):
        raise CursorExpired
    return place


def _mark(watch: Watch) -> str:
    """What the numbers of a cursor count: this repository, as selected by these options."""
    return hashlib.sha256(f"{watch.repository.public_id} {watch.selection}".encode()).hexdigest()[:12]


def _is_remembered(repository: Repository, place: Place) -> bool:
    """Whether no version that ended in the first snapshot to be told, or later, has been forgotten."""
    first = place.sequence + 1 if place.kind == _FILE else place.sequence
    if first > repository.sequence:
        return first == repository.sequence + 1
    kept_since = timezone.now() - timedelta(days=settings.HISTORY_DAYS)
    return Snapshot.objects.filter(repository=repository, sequence=first, taken_at__gt=kept_since).exists()


def _page_of_files(watch: Watch, place: Place, limit: int) -> Page:
    rows = manifest.page_of_contents(watch.repository_id, place.sequence, after=place.file_id, limit=limit + 1)
    paths = dict(paths_of([version.file_id for version in rows]))
    found = [
        Item(
            place=Place(place.sequence, _FILE, version.file_id),
            event=Event.CREATED,
            path=paths[version.file_id],
            sha256=bytes(version.sha256),
            size=version.size,
        )
        for version in rows
    ]
    return _page(watch, found, limit, end=found[-1].place if found else place)


def _page_of_changes(watch: Watch, place: Place, limit: int) -> Page:
    newest = watch.repository.sequence
    told = merge(
        _deletions(watch, place, newest, limit + 1),
        _contents(watch, place, newest, limit + 1),
        key=lambda item: item.place,
    )
    return _page(watch, list(islice(told, limit + 1)), limit, end=Place.before(newest + 1))


def _page(watch: Watch, found: list[Item], limit: int, *, end: Place) -> Page:
    """The first `limit` of what was found, less what the watch does not want."""
    has_more, items = len(found) > limit, found[:limit]
    return Page(
        items=[item for item in items if _is_wanted(watch, item)],
        commits=_commits(watch.repository, {item.place.sequence for item in items} | {end.sequence}),
        following=items[-1].place if has_more else end,
        is_last=not has_more,
    )


def _is_wanted(watch: Watch, item: Item) -> bool:
    """A file may have outgrown the size that the app wants: its deletion is told all the same."""
    if item.event is Event.DELETED:
        return watch.selection.takes_path(item.path.text)
    return watch.selection.takes(item.path.text, item.size)


def _deletions(watch: Watch, place: Place, newest: int, limit: int) -> Iterator[Item]:
    """Versions that ended without another one in their place."""
    followed = FileVersion.objects.filter(file=OuterRef("file"), since=OuterRef("until"))
    ended = FileVersion.objects.filter(~Exists(followed), repository=watch.repository_id)
    columns = ("until", "file_id", "sha256", "size")
    # Deletions come first in a snapshot: behind a new content, all of them have been told.
    after = place.file_id if place.kind == _DELETION else None
    rows = _behind(ended.values_list(*columns), "until", place.sequence, after, newest=newest, limit=limit)
    paths = dict(paths_of(sorted({row[1] for row in rows})))
    for sequence, file_id, sha256, size in rows:
        yield Item(
            place=Place(sequence, _DELETION, file_id),
            event=Event.DELETED,
            path=paths[file_id],
            sha256=bytes(sha256),
            size=size,
        )


def _contents(watch: Watch, place: Place, newest: int, limit: int) -> Iterator[Item]:
    """Versions that began, with the content that they replaced; a new mode alone is no change."""
    replaced = FileVersion.objects.filter(file=OuterRef("file"), until=OuterRef("since"))
    began = (
        FileVersion.objects.filter(repository=watch.repository_id)
        .exclude(sha256=b"")  # too large to be told
        .annotate(previous=Subquery(replaced.values("sha256")[:1]), previous_size=Subquery(replaced.values("size")[:1]))
        .filter(Q(previous=None) | ~Q(previous=F("sha256")))
    )
    columns = ("since", "file_id", "sha256", "size", "previous", "previous_size")
    after = place.file_id if place.kind == _CONTENT else 0
    rows = _behind(began.values_list(*columns), "since", place.sequence, after, newest=newest, limit=limit)
    paths = dict(paths_of(sorted({row[1] for row in rows})))
    for sequence, file_id, sha256, size, previous, previous_size in rows:
        path = paths[file_id]
        had = bool(previous) and watch.selection.takes(path.text, previous_size)
        yield Item(
            place=Place(sequence, _CONTENT, file_id),
            event=Event.UPDATED if had else Event.CREATED,
            path=path,
            sha256=bytes(sha256),
            size=size,
            previous=bytes(previous) if had else b"",
        )


def _behind(
    versions: QuerySet[FileVersion, Any], column: str, sequence: int, after: int | None, *, newest: int, limit: int
) -> list[Any]:
    """The first rows behind a file of the snapshot `sequence` (None: behind all of it), up to the snapshot `newest`.

    Two queries, each of which begins in the index where its rows begin. One condition with OR would read the snapshot
    from its first file for every page.
    """
    rows: list[Any] = []
    if after is not None and sequence <= newest:
        rows += versions.filter(**{column: sequence}, file__gt=after).order_by("file_id")[:limit]
    if left := limit - len(rows):
        later = versions.filter(**{f"{column}__gt": sequence, f"{column}__lte": newest})
        rows += later.order_by(column, "file_id")[:left]
    return rows


def _commits(repository: Repository, sequences: Iterable[int]) -> dict[int, str]:
    snapshots = Snapshot.objects.filter(repository=repository, sequence__in=list(sequences))
    return dict(snapshots.values_list("sequence", "commit_sha"))
