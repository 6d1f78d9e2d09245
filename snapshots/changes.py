"""Compare: what brings an app from what it has to a snapshot.

Only files that may differ are compared: those that changed since the app's last sync, and those that somebody
asked to be told again. Each is compared with what the app acknowledged, so a run that was cut off goes on where it
stopped. An app that was never in sync is compared file by file, once per run.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery

from repositories.models import Watch
from snapshots.models import Delivered, File, FileVersion, Parked
from snapshots.paths import GitPath
from snapshots.rows import are_close

# Files that are compared with one query per table. No cursor stays open while acknowledgements are written.
BATCH = 500


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


def _place(change: Change) -> int:
    """In the order in which the events are told."""
    return (Event.DELETE, Event.CREATE, Event.UPDATE).index(change.event)


def changes_for(watch: Watch, sequence: int) -> Iterator[Change]:
    """Everything that brings the app from what it has to snapshot `sequence`: deletes, creates, updates."""
    later: dict[Event, array[int]] = {Event.CREATE: array("q"), Event.UPDATE: array("q")}
    candidates = _candidates(watch, sequence)
    if len(candidates) <= BATCH:  # few enough to be kept: they are compared once
        yield from sorted(_compare(watch, sequence, candidates), key=_place)
        return
    if watch.synced_sequence or Delivered.objects.filter(watch=watch).exists():
        for change in _compare(watch, sequence, candidates):
            if change.event is Event.DELETE:
                yield change
            else:
                later[change.event].append(change.file_id)
    else:
        later[Event.CREATE] = candidates
    for file_ids in later.values():
        yield from _compare(watch, sequence, file_ids)


def count_changes(watch: Watch, sequence: int) -> int:
    return sum(1 for _ in _compare(watch, sequence, _candidates(watch, sequence)))


def _candidates(watch: Watch, sequence: int) -> "array[int]":
    """The ids of all files that may have to be told, in order. Eight bytes for each: they are read at once."""
    delivered = Delivered.objects.filter(watch=watch).values_list("file_id")
    parked = Parked.objects.filter(watch=watch).values_list("file_id")
    if since := watch.synced_sequence:
        began, ended = changed_between(watch, since, sequence)
        rows = began.union(ended, delivered.filter(again__isnull=False), parked.filter(again=True))
        return sorted_ids(rows)
    current, ended_later = present_at(watch, sequence)
    return sorted_ids(current.union(ended_later, delivered))


def sorted_ids(rows: QuerySet[Any, Any]) -> "array[int]":
    """The file ids that these rows consist of, in order.

    Without Django's `iterator`, which asks PostgreSQL four times: to open a cursor, to read, to read on, to close it.
    The ids of 100,000 files are 4 MB in PostgreSQL's client.
    """
    with connection.cursor() as cursor:
        cursor.execute(*rows.order_by("file_id").query.sql_with_params())
        return array("q", chain.from_iterable(cursor))


def changed_between(watch: Watch, since: int, sequence: int) -> tuple[QuerySet[Any, Any], QuerySet[Any, Any]]:
    """The ids of files with a version that began, and of those with one that ended, after `since` up to `sequence`."""
    versions = FileVersion.objects.filter(repository=watch.repository_id).values_list("file_id")
    began = versions.filter(since__gt=since, since__lte=sequence)
    return began, versions.filter(until__gt=since, until__lte=sequence)


def present_at(watch: Watch, sequence: int) -> tuple[QuerySet[Any, Any], QuerySet[Any, Any]]:
    """The ids of the files of a snapshot: those that are still so, and those that are not any more."""
    versions = FileVersion.objects.filter(repository=watch.repository_id, since__lte=sequence).values_list("file_id")
    return versions.filter(until=None), versions.filter(until__gt=sequence)


def _compare(watch: Watch, sequence: int, file_ids: "array[int]") -> Iterator[Change]:
    """The changes among these files, of any event."""
    for start in range(0, len(file_ids), BATCH):
        batch = file_ids[start : start + BATCH]
        delivered, parked = read_answers(watch, batch)
        present = versions_at(watch, sequence, batch)
        for file_id in _not_chosen_any_more(watch, [pk for pk in batch if pk in present and pk in delivered]):
            del present[file_id]
        gone = {file_id: delivered[file_id] for file_id in batch if file_id in delivered and file_id not in present}
        yield from _deletes(watch, gone, parked, sequence)
        kept = {file_id: present[file_id] for file_id in batch if file_id in present}
        yield from _contents(watch, kept, delivered, parked)


def obsolete_parked_files(watch: Watch, sequence: int) -> list[int]:
    """Files of which the app refused something that does not keep it from having snapshot `sequence`: the file is gone
    and the app has nothing of it, or is what the app has, or is not chosen any more."""
    refused = Parked.objects.filter(watch=watch)
    if watch.synced_sequence and not watch.asked_again:
        versions, since = FileVersion.objects.filter(file=OuterRef("file")), watch.synced_sequence
        began = versions.filter(since__gt=since, since__lte=sequence)
        ended = versions.filter(until__gt=since, until__lte=sequence)
        refused = refused.filter(Exists(began) | Exists(ended))
    file_ids = sorted_ids(refused.values_list("file_id"))
    over = []
    for start in range(0, len(file_ids), BATCH):
        batch = file_ids[start : start + BATCH]
        delivered, parked = read_answers(watch, batch)
        present = versions_at(watch, sequence, batch)
        for file_id in _not_chosen_any_more(watch, [pk for pk in batch if pk in present]):
            del present[file_id]
        over += [pk for pk in batch if not _still_applies(parked.get(pk), delivered.get(pk), present.get(pk))]
    return over


class _Answered(NamedTuple):
    """The content of a file that the app accepted or refused; `again` if somebody asked to repeat that."""

    sha256: bytes
    again: str | bool | None


class Version(NamedTuple):
    file_id: int
    sha256: bytes
    since: int
    blob: str
    size: int


def rows_of(column: str, file_ids: Sequence[int]) -> Q:
    """The rows of these files, which are sorted, and perhaps some others. By range, where that reads few others: a list
    of 500 ids takes Django 4 ms."""
    if are_close(file_ids):
        return Q((f"{column}__gte", file_ids[0]), (f"{column}__lte", file_ids[-1]))
    return Q((f"{column}__in", file_ids))


def read_answers(watch: Watch, file_ids: Sequence[int]) -> tuple[dict[int, _Answered], dict[int, _Answered]]:
    """What the app has accepted of these files, and what it has refused, by the files' ids."""
    return _read_answers(Delivered, watch, file_ids), _read_answers(Parked, watch, file_ids)


def _read_answers(model: type[Delivered | Parked], watch: Watch, file_ids: Sequence[int]) -> dict[int, _Answered]:
    rows = model._default_manager.filter(rows_of("file", file_ids), watch=watch)
    columns = rows.values_list("file_id", "sha256", "again")
    return {file_id: _Answered(bytes(sha256), again) for file_id, sha256, again in columns}


def versions_at(watch: Watch, sequence: int, batch: Sequence[int]) -> dict[int, Version]:
    """What these files are in the snapshot. Older versions are not read, however many there are.

    The current versions first: one that a newer snapshot ends in between is then found among the ended ones. Each of
    the two has an index that the databases choose also without statistics; one condition with OR has none.
    """
    columns = ("file_id", "sha256", "since", "blob", "size")
    versions = FileVersion.objects.filter(rows_of("file", batch), repository=watch.repository_id, since__lte=sequence)
    current, ended_later = versions.filter(until=None), versions.filter(until__gt=sequence)
    found = {version.file_id: version for version in map(Version._make, current.values_list(*columns))}
    if any(file_id not in found for file_id in batch):  # a file has one version in a snapshot
        found |= {version.file_id: version for version in map(Version._make, ended_later.values_list(*columns))}
    return found


def _not_chosen_any_more(watch: Watch, file_ids: list[int]) -> list[int]:
    """Files that the app has, and that its watch's globs do not choose now. The size does not count: of a file that
    outgrew `max_file_size` the app keeps what it has."""
    selection = watch.selection
    if not selection.include and not selection.exclude:
        return []
    return [file_id for file_id, path in paths_of(file_ids) if not selection.takes_path(path.text)]


def _deletes(watch: Watch, gone: dict[int, _Answered], parked: dict[int, _Answered], sequence: int) -> Iterator[Change]:
    ids = [file_id for file_id, had in gone.items() if not is_refused(parked.get(file_id), had.sha256)]
    if not ids:
        return
    ended = FileVersion.objects.filter(file=OuterRef("pk"), until__lte=sequence).order_by("-until").values("until")
    # The number is part of the message id, which stays the same when the delete is told again.
    ends = dict(File.objects.filter(pk__in=ids).values_list("pk", Subquery(ended[:1])))
    for file_id, path in paths_of(ids):
        yield Change(
            event=Event.DELETE,
            file_id=file_id,
            path=path,
            sha256=gone[file_id].sha256,
            since=ends[file_id] or sequence,
            manual=watch.asked_again and bool(gone[file_id].again),
        )


def _contents(
    watch: Watch, kept: dict[int, Version], delivered: dict[int, _Answered], parked: dict[int, _Answered]
) -> Iterator[Change]:
    events = {file_id: _event_of(version, delivered.get(file_id)) for file_id, version in kept.items()}
    ids = [
        file_id
        for file_id, event in events.items()
        if event and not is_refused(parked.get(file_id), kept[file_id].sha256)
    ]
    selection = watch.selection
    for file_id, path in paths_of(ids):
        event, version = events[file_id], kept[file_id]
        had, refused = delivered.get(file_id), parked.get(file_id)
        if event and selection.takes(path.text, version.size):
            yield Change(
                event=event,
                file_id=file_id,
                path=path,
                sha256=bytes(version.sha256),
                since=version.since,
                blob=version.blob,
                size=version.size,
                previous=had.sha256 if had else b"",
                manual=watch.asked_again and bool((had and had.again) or (refused and refused.again)),
            )


def _event_of(version: Version, had: _Answered | None) -> Event | None:
    if not version.sha256:
        return None  # too large to be told; the app keeps what it has
    if had is None or had.again in (Event.CREATE, Event.DELETE):
        return Event.CREATE
    if had.again == Event.UPDATE or had.sha256 != version.sha256:
        return Event.UPDATE
    return None


def is_refused(refused: _Answered | None, sha256: bytes) -> bool:
    """The endpoint refused this very content, and nobody asked for another attempt."""
    return refused is not None and not refused.again and refused.sha256 == sha256


def _still_applies(refused: _Answered | None, had: _Answered | None, version: Version | None) -> bool:
    """A refused content while it is the file's, unless the app has it and nobody asked for it again; a refused delete
    while the file is gone."""
    if refused is None:
        return False
    if version is None:
        return had is not None and had.sha256 == refused.sha256
    return version.sha256 == refused.sha256 and (had is None or bool(had.again) or had.sha256 != refused.sha256)


def paths_of(file_ids: list[int]) -> Iterator[tuple[int, GitPath]]:
    """In the order of the ids, which are sorted. Not joined to the versions: PostgreSQL would read all files of the
    repository for each batch."""
    if not file_ids:
        return
    wanted = set(file_ids)
    files = File.objects.filter(rows_of("pk", file_ids)).order_by("pk")
    for file_id, path, raw_path in files.values_list("pk", "path", "raw_path"):
        if file_id in wanted:
            yield file_id, GitPath.of_row(path, raw_path)
