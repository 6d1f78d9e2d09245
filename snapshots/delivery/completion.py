"""A commit is complete for an app when every file of it was acknowledged or parked.

Each completion is a row. An app that wants it is told with `sync_complete`, under the lock of the delivery: no file
is on its way then, so the receiver can compare the digest with its own. The row says whether the app is still to be
told, so a worker that dies loses nothing: the scheduler asks again.
"""

from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from repositories import messages, timing, watch_state
from repositories.base import queue
from repositories.errors import LockTimeoutError
from repositories.models import App, OptionalEvent, Watch
from repositories.repo_lock import repo_lock
from snapshots.delivery import endpoint, notices
from snapshots.delivery.payloads import describe, iso, noticed_at, origin, serialise
from snapshots.delivery.run import lock_key
from snapshots.delivery.webhooks import Message
from snapshots.models import Completion, File, FileVersion, Parked, Snapshot
from snapshots.packed import batches
from snapshots.steps import Step

_EVENT = OptionalEvent.SYNC_COMPLETE.value


def record(watch: Watch, snapshot: Snapshot) -> float | None:
    """The app has everything of this snapshot, unless the generation says that somebody has asked for more.

    Returns the seconds from the notice of the change to its last acknowledgement, where there was one.
    """
    with transaction.atomic():
        rows = Watch.objects.select_for_update(of=("self",)).filter(pk=watch.pk, generation=watch.generation)
        before = rows.select_related("app").first()
        if before is None or not watch_state.is_behind(before, snapshot.sequence):
            return None
        if not watch_state.complete(watch, sequence=snapshot.sequence, commit_sha=snapshot.commit_sha):
            return None
        Completion.objects.filter(watch=watch, pending=True).update(pending=False)
        made = Completion.objects.create(**_facts(before, snapshot))
    return None if made.latency_ms is None else made.latency_ms / 1000


def _facts(before: Watch, snapshot: Snapshot) -> dict[str, Any]:
    """`before` is the watch as it was until now, with all that was acknowledged since its last completion."""
    step = Step.of(before.step)
    previous, oldest = _previous_and_oldest_missed(before, snapshot)
    return {
        "watch": before,
        "app_id": before.app_id,
        "sequence": snapshot.sequence,
        "commit_sha": snapshot.commit_sha,
        "previous_commit": before.synced_commit,
        "branch": snapshot.branch,
        "created": step.created,
        "updated": step.updated,
        "deleted": step.deleted,
        "parked": _parked_since_the_last_completion(before).count(),
        "left_out": _count_left_out(before, previous, snapshot),
        "files": before.files,
        "digest": before.digest,
        "noticed_at": noticed_at(snapshot),
        "fetched_at": snapshot.fetched_at,
        "first_acknowledged_at": step.first_at,
        "last_acknowledged_at": step.last_at,
        "latency_ms": _latency(before, oldest, snapshot, step.last_at),
        "pending": is_wanted_by(before.app),
    }


def _previous_and_oldest_missed(before: Watch, snapshot: Snapshot) -> tuple[Snapshot | None, Snapshot]:
    """The snapshot that the app had, where there is one, and the first one after it."""
    since = Snapshot.objects.filter(repository=before.repository_id, sequence__gte=before.synced_sequence)
    found = list(since.order_by("sequence")[:2])
    previous = found.pop(0) if found and found[0].sequence == before.synced_sequence else None
    return previous, found[0] if found else snapshot


def _latency(before: Watch, oldest: Snapshot, snapshot: Snapshot, last: datetime | None) -> int | None:
    """Milliseconds from the notice of the oldest commit that the app did not have to the last acknowledgement.

    None where no change was acknowledged, and for a first sync or a resync: their commits may be years old.
    """
    if last is None or not 0 < before.synced_sequence < snapshot.sequence:
        return None
    return max(0, round((last - noticed_at(oldest)).total_seconds() * 1000))


def _parked_since_the_last_completion(before: Watch) -> QuerySet[Parked]:
    """A file that was refused twice since then has one row, and one that was accepted after all has none."""
    parked = Parked.objects.filter(watch=before)
    return parked.filter(parked_at__gt=before.synced_at) if before.synced_at else parked


def _count_left_out(before: Watch, previous: Snapshot | None, snapshot: Snapshot) -> int:
    """Files that changed in this step and are not sent because of their size, and submodules that are new."""
    selection = before.selection
    too_large = Q(sha256=b"")
    if selection.max_file_size is not None:
        too_large |= Q(size__gt=selection.max_file_size)
    began = FileVersion.objects.filter(
        repository=before.repository_id, since__gt=before.synced_sequence, since__lte=snapshot.sequence
    )
    left_out = began.filter(too_large, Q(until=None) | Q(until__gt=snapshot.sequence))
    paths = _submodules(snapshot)
    if previous:
        paths -= _submodules(previous)
    for batch in batches(left_out.values_list("file_id", flat=True)):
        paths.update(File.objects.filter(pk__in=batch).values_list("path", flat=True))
    return sum(map(selection.takes_path, paths))


def _submodules(snapshot: Snapshot) -> set[str]:
    return {item["path"] for item in snapshot.left_out if item["reason"] == "submodule"}


def is_wanted_by(app: App) -> bool:
    return app.wants(_EVENT)


def request(watch: Watch) -> None:
    """If the app is still to be told. An attempt that has to wait for its time does so in the job."""
    if is_wanted_by(watch.app) and Completion.objects.filter(watch=watch, pending=True).exists():
        messages.send_complete(watch.pk, lane=endpoint.lane_of(watch.app))


def request_lost(most: int) -> int:
    """Request those that are due: Redis may have lost their jobs. Returns how many."""
    pending = Completion.objects.filter(pending=True, app__disabled_at=None, watch__access_denied_at=None)
    lost = list(timing.not_paused(pending).select_related("app")[:most])
    for completion in lost:
        messages.send_complete(completion.watch_id, lane=endpoint.lane_of(completion.app))
    return len(lost)


def repeat(watch: Watch) -> None:
    """Tell the last one again, because somebody asked for it."""
    newest = Completion.objects.filter(watch=watch).order_by("pk").last()
    if newest:
        Completion.objects.filter(pk=newest.pk).update(pending=True, attempts=0, retry_at=None)
        request(watch)


def send(watch_id: int, *, job_id: str, lane: str) -> float | None:
    """Returns the seconds after which to try again, if it must be."""
    watches = Watch.objects.filter(pk=watch_id, access_denied_at=None, app__disabled_at=None)
    watch = watches.select_related("app", "repository").first()
    if watch is None:
        return None
    if watch.app.slow_since and lane != queue.SLOW_DELIVERIES:
        request(watch)
        return None
    try:
        with repo_lock(lock_key(watch), job_id=job_id, wait=0):
            return announce(watch, lane)
    except LockTimeoutError:
        return None  # files are on their way; their run requests it again when it ends


def announce(watch: Watch, lane: str) -> float | None:
    """Tell the app, if it is still to be told and nothing has changed since. The caller holds the delivery's lock.

    Returns the seconds after which to try again, if it must be.
    """
    completion = Completion.objects.filter(watch=watch, pending=True).order_by("pk").last()
    if completion is None:
        return None
    if not is_wanted_by(watch.app) or _is_overtaken(completion):
        Completion.objects.filter(pk=completion.pk).update(pending=False)
        return None
    if rest := max(timing.seconds_until(completion.retry_at), timing.seconds_of_rest(watch.app)):
        return rest
    attempt = notices.attempt_at(
        watch, _message(watch, completion), number=completion.attempts + 1, lane=lane, until_accepted=True
    )
    retry_at = timezone.now() + timedelta(seconds=attempt.pause) if attempt.pause else None
    Completion.objects.filter(pk=completion.pk).update(
        pending=not attempt.is_over, attempts=F("attempts") + 1, retry_at=retry_at
    )
    if attempt.moved:
        request(watch)
    return attempt.pause


def _is_overtaken(completion: Completion) -> bool:
    """The app has something else by now, or may have: a run has begun to tell it of a later commit, and an answer may
    have been lost. The next completion says what."""
    told = {"synced_sequence": completion.sequence, "files": completion.files, "digest": completion.digest}
    begun = {"begun_sequence__in": [0, completion.sequence]}
    return not Watch.objects.filter(pk=completion.watch_id, **told, **begun).exists()


def _message(watch: Watch, completion: Completion) -> Message:
    payload = {
        "event": _EVENT,
        "repository": describe(watch.repository),
        "commit_sha": completion.commit_sha,
        "previous_commit_sha": completion.previous_commit or None,
        "counts": {
            "created": completion.created,
            "updated": completion.updated,
            "deleted": completion.deleted,
            "parked": completion.parked,
            "left_out": completion.left_out,
        },
        "files": completion.files,
        "digest": completion.digest,
        "times": {
            "noticed_at": iso(completion.noticed_at),
            "fetched_at": _iso(completion.fetched_at),
            "first_acknowledged_at": _iso(completion.first_acknowledged_at),
            "last_acknowledged_at": _iso(completion.last_acknowledged_at),
        },
        "timestamp": iso(timezone.now()),
        **origin(completion.branch, completion.noticed_at),
    }
    return Message(event=_EVENT, id=notices.message_id(watch, _EVENT, str(completion.pk)), body=serialise(payload))


def _iso(moment: datetime | None) -> str | None:
    return iso(moment) if moment else None
