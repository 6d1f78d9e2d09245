"""Tell: every change to the app that watches, signed, in order, and never again once it is acknowledged.

One run per watch at a time. A run sends the state of one snapshot. When it has released its lock it checks whether
something came in meanwhile, so nothing is lost. An endpoint that hangs moves to the slow lane.
"""

import logging
from datetime import timedelta

from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone

from repositories import access, accounts, messages, timing, watch_state
from repositories.base import counters, log_context, queue
from repositories.errors import (
    AccessDenied,
    CloneDamaged,
    DeliveryFailed,
    DocoraError,
    ForbiddenAddress,
    GitError,
    LockTimeoutError,
)
from repositories.git import clones
from repositories.models import App, Repository, Watch
from repositories.repo_lock import HeldLock, repo_lock
from repositories.watches import request_snapshot
from snapshots import unsure
from snapshots.acknowledged import delete_obsolete_parked_files
from snapshots.delivery import completion, endpoint, notices
from snapshots.delivery.run import FileMessage, Outdated, Run, TakesLong, Told, WatchGone, lock_key
from snapshots.delivery.webhooks import Answer, WebhookClient
from snapshots.models import Snapshot

log = logging.getLogger("docora.delivery")

# A longer run goes to the back of its queue, so that a huge repository does not hold a worker for hours.
_BUDGET = 120.0
# The few workers for hints send what is quickly sent; the rest goes on in the ordinary lane.
_URGENT_BUDGET = 2.0
_MOST_URGENT = 10


def request_deliveries(repository: Repository, *, urgent: bool = False) -> None:
    """One job for each watch that lacks the newest snapshot; the tick asks again for those that must wait.

    After a hint they are urgent. The urgent lane serves a few apps at once; the others come first in their own lanes.
    """
    urgent_left = _MOST_URGENT if urgent else 0
    for watch in _behind(repository.watches.all()):
        if timing.seconds_of_pause(watch):
            watch_state.put_back(Watch.objects.filter(pk=watch.pk))
        elif urgent_left and endpoint.may_be_urgent(watch):
            messages.deliver_now(watch.pk)
            urgent_left -= 1
        else:
            request_delivery(watch, first=urgent)


def request_delivery(watch: Watch, *, first: bool = False) -> None:
    """`first`: before all that waits."""
    messages.deliver(watch.pk, lane=endpoint.lane_of(watch.app), first=first)


def continue_in_ordinary_lane(watch_id: int) -> None:
    """The urgent lane's time is up."""
    watch_state.put_back(Watch.objects.filter(pk=watch_id))
    for watch in _behind(Watch.objects.filter(pk=watch_id)):
        request_delivery(watch, first=True)


def send_complete(watch_id: int, *, job_id: str, lane: str) -> float | None:
    """Returns the seconds after which to try again, if it must be."""
    pause = completion.send(watch_id, job_id=job_id, lane=lane)
    # A delivery that came meanwhile found the lock of this one busy, and gave up.
    for watch in due(Watch.objects.filter(pk=watch_id)):
        request_delivery(watch)
    return pause


def resume(app: App) -> None:
    """All that the app has missed, once its endpoint is enabled again."""
    watches = app.watches.select_related("app", "repository")
    for watch in watches:
        if watch.access_denied_at is None:
            request_delivery(watch)
    # These read the log: should the job run out of time, the deliveries are requested already.
    for watch in watches:
        notices.request_missed(watch)


def due(watches: "QuerySet[Watch]") -> "QuerySet[Watch]":
    """Those that lack something which can be delivered now."""
    return timing.not_paused(_behind(watches))


def _behind(watches: "QuerySet[Watch]") -> "QuerySet[Watch]":
    can_be_told = watch_state.behind(watches).filter(repository__needs_repair=False, app__disabled_at=None)
    return can_be_told.select_related("app")


def deliver(watch_id: int, *, job_id: str, lane: str = queue.SLOW_DELIVERIES) -> float | None:
    """Bring the app up to the newest snapshot; returns the seconds after which to try again, if it must be."""
    watch = Watch.objects.select_related("app", "repository").filter(pk=watch_id).first()
    if watch is None or watch.app.disabled_at:
        return None
    with log_context.bound(app=watch.app.public_id, repository=watch.repository.public_id):
        return _deliver(watch, job_id, lane)


def _deliver(watch: Watch, job_id: str, lane: str) -> float | None:
    if watch.app.slow_since and lane != queue.SLOW_DELIVERIES:
        request_delivery(watch)
        return None
    if pause := timing.seconds_of_pause(watch):
        # A job that was queued behind a failed one must not run before the pause is over.
        watch_state.put_back(Watch.objects.filter(pk=watch.pk))
        return pause
    try:
        with counters.one_run() as counts, repo_lock(lock_key(watch), job_id=job_id, wait=0) as held:
            pause = _deliver_newest(watch, lane, held, counts)
    except LockTimeoutError as error:
        log.warning("Left %s to the run that is telling %s already: %s", watch.repository, watch.app, error)
        return None
    except (WatchGone, Watch.DoesNotExist):
        log.info("Stopped telling %s about %s: it is not watched any more", watch.app, watch.repository)
        pause = None
    if pause is None:
        _rerun_after_current(watch)
    elif lane == queue.URGENT:
        request_delivery(watch, first=True)
        return None
    return pause


def _rerun_after_current(watch: Watch) -> None:
    """A run that found the lock busy gave up; queue its work again, also for a watch that was renewed meanwhile."""
    same = Watch.objects.filter(app=watch.app_id, repository=watch.repository_id, access_denied_at=None)
    left_over = due(same)
    if left_over.exists():  # seldom, and quicker asked than all that the rows have
        for left in left_over:
            request_delivery(left)
    completion.request(watch)


def _deliver_newest(watch: Watch, lane: str, held: HeldLock, counts: counters.Counts) -> float | None:
    # Others write to a watch and to its app while the run waits to begin. Both rows at one moment: a run that knows the
    # newest `restarts` must know what they stand for.
    watch = Watch.objects.select_related("app", "repository").get(pk=watch.pk)
    if watch.app.disabled_at:
        return None
    snapshot = Snapshot.objects.filter(repository=watch.repository_id).order_by("sequence").last()
    if snapshot is None or not watch_state.is_behind(watch, snapshot.sequence):
        watch_state.settle(Watch.objects.filter(pk=watch.pk))
        return None
    try:
        access.prove(watch)
        told = _run(watch, snapshot, lane, held, counts)
    except AccessDenied:
        return None  # the app has been told; a new token, or the old one accepted again, resumes it
    except Outdated:
        return 0.0
    except CloneDamaged:
        Repository.objects.filter(pk=watch.repository_id).update(needs_repair=True)
        request_snapshot(watch.repository)
        return None
    except TakesLong as error:
        if lane != queue.URGENT:
            endpoint.move_to_slow_lane(watch.app, str(error))
        return _in_slower_lane(watch, lane)
    except (GitError, ForbiddenAddress) as error:
        return _put_off(watch, error)
    if told.failure:
        with log_context.bound(message_id=told.failed_message):
            return _after_failure(watch, told, told.failure, lane)
    if not told.everything:
        watch_state.end_delivery(watch)
        endpoint.note_part(watch.app, accepted_some=told.accepted_some)
        return 0.0
    delete_obsolete_parked_files(watch, snapshot.sequence)
    _complete(watch, snapshot, lane, counts)
    log.info("%s has %s at %s", watch.app, watch.repository, snapshot.commit_sha[:12])
    if told.accepted_some:
        endpoint.note_success(watch.app, slowest=told.slowest)
    if completion.is_wanted_by(watch.app):
        completion.announce(watch, lane)
    return None


def _run(watch: Watch, snapshot: Snapshot, lane: str, held: HeldLock, counts: counters.Counts) -> Told:
    unsure.mark(watch, snapshot.sequence)
    watch_state.begin_delivery(watch, sequence=snapshot.sequence)
    with (
        WebhookClient[FileMessage](watch.app, timeout=endpoint.timeout(lane, settings.WEBHOOK_TIMEOUT)) as client,
        clones.open_blobs(watch.repository.clone_key) as blobs,
    ):
        gives_way = lane != queue.SLOW_DELIVERIES
        budget = _URGENT_BUDGET if lane == queue.URGENT else _BUDGET
        run = Run(watch, snapshot, client, blobs, held=held, budget=budget, gives_way=gives_way, counts=counts)
        return run.tell_all()


def _complete(watch: Watch, snapshot: Snapshot, lane: str, counts: counters.Counts) -> None:
    latency = completion.record(watch, snapshot)
    if latency is not None:
        counts.observe(counters.ACKNOWLEDGED_SECONDS, latency, endpoint.class_of(lane))


def _after_failure(watch: Watch, told: Told, answer: Answer, lane: str) -> float | None:
    app = watch.app
    if endpoint.move_if_slow(app, answer, lane):
        return _in_slower_lane(watch, lane)
    endpoint.note_failure(app, accepted_some=told.accepted_some)
    if reason := endpoint.reason_to_disable(app, answer):
        accounts.disable_app(app, reason)
        return None
    if answer.retry_after:
        timing.rest_app(app, answer.retry_after)
    error = DeliveryFailed(answer.error)
    return _put_off(watch, error, at_least=answer.retry_after or 0.0, afresh=told.made_progress)


def _in_slower_lane(watch: Watch, lane: str) -> float | None:
    """What was urgent goes on at once; else the delivery is requested again after this run, in the slow lane."""
    if lane == queue.URGENT:
        return 0.0
    watch_state.put_back(Watch.objects.filter(pk=watch.pk))
    return None


def _put_off(watch: Watch, error: DocoraError, *, at_least: float = 0.0, afresh: bool = False) -> float:
    """The pauses grow from attempt to attempt. A run that made progress (`afresh`) begins with the first one."""
    attempts = 1 if afresh else watch_state.failures_in_a_row(watch, error.code) + 1
    pause = max(timing.pause_after(attempts), at_least)
    watch_state.put_off(watch, error, attempts=attempts, until=timezone.now() + timedelta(seconds=pause))
    log.warning("Telling %s about %s failed (attempt %d): %s", watch.app, watch.repository, attempts, error)
    return pause
