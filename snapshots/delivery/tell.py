"""Tell: every change to the app that watches, signed, in order, once acknowledged never again.

One run per watch at a time. A run always tells the state of one snapshot, and looks again when it has left the
lock, so nothing that came in meanwhile is lost. An endpoint that hangs moves to the slow lane.
"""

import logging
from datetime import timedelta

from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from repositories import access, accounts, watches
from repositories.base import queue
from repositories.errors import (
    AccessDenied,
    CloneDamaged,
    DocoraError,
    ForbiddenAddress,
    GitError,
    LockTimeoutError,
)
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.repo_lock import HeldLock, repo_lock
from snapshots.delivery import endpoint
from snapshots.delivery.run import DeliveryFailed, FileMessage, Outdated, Run, TakesLong, WatchGone
from snapshots.delivery.webhooks import WebhookClient
from snapshots.models import Snapshot

log = logging.getLogger("docora.delivery")

# A longer run goes to the back of its queue, so that a huge repository does not hold a worker for hours.
_BUDGET = 120.0
# The slow lane has the time for one file of a gibibyte in pieces that take seconds each.
_JOB_TIMEOUT = 6 * 3600
# What others write to a watch while its run waits to begin.
_MAY_HAVE_CHANGED = (
    "status", "synced_sequence", "generation", "resyncs", "retry_count", "access_denied_at", "access_proven_at"
)  # fmt: skip


def request_deliveries(repository: Repository) -> None:
    """One job for each watch that does not have the newest snapshot yet; the tick asks for those that must wait."""
    for watch in _behind(repository.watches.all()):
        if _rest_of_pause(watch):
            _note_waiting(watch)
        else:
            request_delivery(watch)


def request_delivery(watch: Watch) -> None:
    queue.enqueue(
        endpoint.lane_of(watch.app),
        "snapshots.jobs.deliver",
        watch.pk,
        job_id=job_id_of(watch.pk),
        timeout=_JOB_TIMEOUT,
    )


def resume(app: App) -> None:
    """All that the app has missed, once its endpoint is enabled again."""
    for watch in app.watches.filter(access_denied_at=None).select_related("app"):
        request_delivery(watch)


def job_id_of(watch_id: int) -> str:
    return f"deliver-{watch_id}"


def due(watches: "QuerySet[Watch]") -> "QuerySet[Watch]":
    """Those that lack something which can be delivered now."""
    now = timezone.now()
    return _behind(watches).filter(
        Q(retry_at=None) | Q(retry_at__lte=now), Q(app__resting_until=None) | Q(app__resting_until__lte=now)
    )


def _behind(watches: "QuerySet[Watch]") -> "QuerySet[Watch]":
    lacking = watches.filter(synced_sequence__lt=F("repository__sequence"), repository__needs_repair=False)
    return lacking.filter(app__disabled_at=None).select_related("app")


def deliver(watch_id: int, *, job_id: str, lane: str = queue.SLOW_DELIVERIES) -> float | None:
    """Bring the app up to the newest snapshot; returns the seconds after which to try again, if it must be."""
    watch = Watch.objects.select_related("app", "repository").filter(pk=watch_id).first()
    if watch is None or watch.app.disabled_at:
        return None
    if watch.app.slow_since and lane != queue.SLOW_DELIVERIES:
        request_delivery(watch)
        return None
    if pause := _rest_of_pause(watch):
        _note_waiting(watch)
        return pause
    return _deliver_alone(watch, job_id, lane)


def _rest_of_pause(watch: Watch) -> float | None:
    """A round that was queued behind a failed one must not come before the pause is over."""
    own = (watch.retry_at - timezone.now()).total_seconds() if watch.retry_at else 0.0
    rest = max(own, endpoint.rest_of(watch.app))
    return rest if rest > 0.1 else None


def _note_waiting(watch: Watch) -> None:
    Watch.objects.filter(pk=watch.pk, status=WatchStatus.SCANNING).update(status=WatchStatus.PENDING)


def _deliver_alone(watch: Watch, job_id: str, lane: str) -> float | None:
    try:
        # By app and repository, not by watch: a renewed watch must not overtake the run of the old one.
        with repo_lock(f"delivery:{watch.app_id}:{watch.repository_id}", job_id=job_id, wait=0) as held:
            pause = _deliver_newest(watch, lane, held)
    except LockTimeoutError as error:
        log.warning("Left %s to the run that is telling %s already: %s", watch.repository, watch.app, error)
        return None
    except (WatchGone, Watch.DoesNotExist):
        log.info("Stopped telling %s about %s: it is not watched any more", watch.app, watch.repository)
        pause = None
    if pause is None:
        _look_again(watch)
    return pause


def _look_again(watch: Watch) -> None:
    """Who came while the lock was held has left; what it came for, also for a renewed watch, is still to be told."""
    same = Watch.objects.filter(app=watch.app_id, repository=watch.repository_id, access_denied_at=None)
    for left_over in due(same):
        request_delivery(left_over)


def _deliver_newest(watch: Watch, lane: str, held: HeldLock) -> float | None:
    snapshot = _newest_unknown_to(watch)
    if snapshot is None:
        _settle_status(watch)
        return None
    try:
        access.prove(watch)
        return None if _tell(watch, snapshot, lane, held) else 0.0
    except AccessDenied:
        return None  # the watch has been told why; a new token, or the old one accepted again, resumes it
    except CloneDamaged:
        Repository.objects.filter(pk=watch.repository_id).update(needs_repair=True)
        watches.request_snapshot(watch.repository)
        return None
    except DeliveryFailed as error:
        return _after_failure(watch, error, lane)
    except TakesLong as error:
        _go_to_slow_lane(watch, str(error))
        return None
    except (GitError, ForbiddenAddress) as error:
        return _put_off(watch, error)


def _newest_unknown_to(watch: Watch) -> Snapshot | None:
    watch.refresh_from_db(fields=_MAY_HAVE_CHANGED)
    newest = Snapshot.objects.filter(repository=watch.repository_id).order_by("sequence").last()
    return newest if newest and newest.sequence > watch.synced_sequence else None


def _tell(watch: Watch, snapshot: Snapshot, lane: str, held: HeldLock) -> bool:
    """False when it is to be looked at anew: the time is up, or somebody asked for something else."""
    if watch.status != WatchStatus.SCANNING:
        Watch.objects.filter(pk=watch.pk).update(status=WatchStatus.SCANNING)
    timeout = endpoint.timeout(lane, settings.WEBHOOK_TIMEOUT)
    try:
        with (
            WebhookClient[FileMessage](watch.app, timeout=timeout) as client,
            clones.open_blobs(watch.repository.clone_key) as blobs,
        ):
            gives_way = lane != queue.SLOW_DELIVERIES
            told = Run(watch, snapshot, client, blobs, held=held, budget=_BUDGET, gives_way=gives_way).tell_all()
    except Outdated:
        return False
    if told.everything:
        _record_synced(watch, snapshot)
    if told.everything and told.accepted_some:
        endpoint.note_success(watch.app, slowest=told.slowest)
    return told.everything


def _record_synced(watch: Watch, snapshot: Snapshot) -> None:
    """Not if somebody asked for something to be told again meanwhile: then it is not all told."""
    Watch.objects.filter(pk=watch.pk, generation=watch.generation).update(
        **Watch.FRESH | {"status": WatchStatus.SYNCED},
        synced_sequence=snapshot.sequence,
        synced_commit=snapshot.commit_sha,
        synced_at=timezone.now(),
    )
    log.info("%s has %s at %s", watch.app, watch.repository, snapshot.commit_sha[:12])


def _settle_status(watch: Watch) -> None:
    """A watch that had nothing to be told is in sync, whatever it waited for."""
    told = Watch.objects.filter(pk=watch.pk, synced_sequence__gt=0, synced_sequence=watch.synced_sequence)
    waiting = told.filter(access_denied_at=None).exclude(status=WatchStatus.SYNCED)
    waiting.update(**Watch.FRESH | {"status": WatchStatus.SYNCED})


def _after_failure(watch: Watch, failure: DeliveryFailed, lane: str) -> float | None:
    app, answer = watch.app, failure.answer
    if answer.timed_out and lane != queue.SLOW_DELIVERIES:
        _go_to_slow_lane(watch, answer.error)
        return None
    endpoint.note_failure(app, accepted_some=failure.accepted_some)
    if reason := endpoint.reason_to_disable(app, answer):
        accounts.disable_app(app, reason)
        return None
    if answer.retry_after:
        endpoint.let_rest(app, answer.retry_after)
    return _put_off(watch, failure, at_least=answer.retry_after or 0.0, afresh=failure.made_progress)


def _go_to_slow_lane(watch: Watch, reason: str) -> None:
    """Who looks again asks for it there."""
    endpoint.move_to_slow_lane(watch.app, reason)
    Watch.objects.filter(pk=watch.pk).update(status=WatchStatus.PENDING)


def _put_off(watch: Watch, error: DocoraError, *, at_least: float = 0.0, afresh: bool = False) -> float:
    """The pauses grow from attempt to attempt, but not for an endpoint that takes a part each time."""
    attempts = 1 if afresh else watch.retry_count + 1
    pause = max(endpoint.pause_after(attempts), at_least)
    Watch.objects.filter(pk=watch.pk).update(
        status=WatchStatus.PENDING if attempts < settings.MAX_RETRY_ATTEMPTS else WatchStatus.FAILED,
        retry_count=attempts,
        retry_at=timezone.now() + timedelta(seconds=pause),
        last_error_code=error.code,
        last_error=str(error),
    )
    log.warning("Telling %s about %s failed (attempt %d): %s", watch.app, watch.repository, attempts, error)
    return pause
