"""What an app may have without Docora knowing it.

The app may have taken a message whose answer was never written down: the worker was killed, or the answer got lost. A
run that tells the same snapshot repeats the message. Once the repository has moved on, a comparison with what the app
acknowledged does not find it: a file that was told and is gone again would never be deleted, and one that was changed
and changed back would stay changed. So each run first writes down which snapshot it begins to tell. If it was not told
to its end, the next run marks the files of which the app may have what that snapshot had. The same goes for files that
were chosen then and are not now.
"""

from array import array
from collections.abc import Iterable
from dataclasses import replace

from django.db import transaction

from repositories.models import Watch
from repositories.selection import EVERYTHING, Selection
from repositories.watches import hold_watch
from snapshots.changes import (
    BATCH,
    Event,
    Version,
    changed_between,
    is_refused,
    paths_of,
    present_at,
    read_answers,
    sorted_ids,
    versions_at,
)
from snapshots.models import Delivered


def mark(watch: Watch, sequence: int) -> None:
    """Before snapshot `sequence` is told: mark what the app may have of the snapshot that was begun before."""
    if not 0 < watch.begun_sequence <= sequence:
        return
    file_ids = _differing(watch, sequence)
    for start in range(0, len(file_ids), BATCH):
        with transaction.atomic():
            hold_watch(watch.pk)
            _mark(watch, sequence, file_ids[start : start + BATCH])


def _differing(watch: Watch, sequence: int) -> "array[int]":
    """Files that changed since; also all others, if other files are chosen now."""
    began, ended = changed_between(watch, watch.begun_sequence, sequence)
    rows = began.union(ended)
    if not _begun(watch).is_like(watch.selection):
        rows = began.union(ended, *present_at(watch, watch.begun_sequence))
    return sorted_ids(rows)


def _begun(watch: Watch) -> Selection:
    return Selection.from_json(watch.begun_selection)


def ask_for_delete(watch: Watch, contents: Iterable[tuple[int, bytes]]) -> None:
    """Of files, by their ids, that the app does not have as far as Docora knows: rows that only ask for a delete."""
    rows = [Delivered(watch=watch, file_id=pk, sha256=sha256, again=Event.DELETE) for pk, sha256 in contents]
    Delivered.objects.bulk_create(rows, batch_size=BATCH, ignore_conflicts=True)


def _mark(watch: Watch, sequence: int, batch: "array[int]") -> None:
    delivered, parked = read_answers(watch, batch)
    begun = _chosen(_begun(watch), versions_at(watch, watch.begun_sequence, batch))
    # Of a file that has outgrown `max_file_size` the app keeps what it has.
    any_size = replace(watch.selection, max_file_size=None)
    now = _chosen(any_size, versions_at(watch, sequence, batch))
    extra = [(pk, begun[pk].sha256) for pk in batch if pk in begun and pk not in now and pk not in delivered]
    # One without a digest is too large to be told.
    ask_for_delete(watch, [(pk, sha) for pk, sha in extra if sha and not is_refused(parked.get(pk), sha)])
    again: dict[Event, list[int]] = {Event.CREATE: [], Event.UPDATE: []}
    for pk in batch:
        if pk in now and pk in delivered:
            if pk not in begun:
                again[Event.CREATE].append(pk)
            elif begun[pk].sha256 != delivered[pk].sha256 == now[pk].sha256:
                again[Event.UPDATE].append(pk)
    for event, file_ids in again.items():
        Delivered.objects.filter(watch=watch, file__in=file_ids, again=None).update(again=event)


def _chosen(selection: Selection, versions: dict[int, Version]) -> dict[int, Version]:
    if selection == EVERYTHING:
        return versions
    paths = paths_of(sorted(versions))
    return {pk: versions[pk] for pk, path in paths if selection.takes(path.text, versions[pk].size)}
