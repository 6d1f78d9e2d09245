"""The scheduler's tick: request what is due. Ticks at the same time request the same jobs, which become one.

After a long standstill no more looks are queued than SCAN_BACKLOG allows: those that have been due for longest first,
the rest tick by tick.
"""

import logging

from django.conf import settings
from django.utils import timezone

from repositories import messages, watch_state
from repositories.base import pulse, queue
from repositories.models import Watch, WatchStatus
from repositories.watches import request_snapshot
from snapshots import retention
from snapshots.delivery import completion
from snapshots.delivery.tell import due as due_watches
from snapshots.delivery.tell import request_delivery
from snapshots.looks import Looks

log = logging.getLogger("docora.schedule")

# Of each tick, so that looks do not wait for a long log to be trimmed.
_TRIM_SECONDS = 5.0
_LAST_RECONCILED = "docora:last-reconciled"


def tick() -> int:
    """One tick alone, until all remotes have answered or had the time to; returns how many jobs were requested."""
    with Looks() as looks:
        return begin_tick(looks) + looks.work(2 * settings.GIT_ASK_TIMEOUT, until_answered=True)


def begin_tick(looks: Looks) -> int:
    """Leaves the looks that need no job to `looks.work`; returns how many jobs were requested."""
    _free_abandoned_watches()
    retention.delete(retention.old_deliveries(), seconds=_TRIM_SECONDS)
    retention.delete(retention.old_completions(), seconds=_TRIM_SECONDS)
    requested = looks.claim() + _ask_for_deliveries() + _ask_for_reconciliation()
    pulse.note_tick()
    return requested


def _ask_for_deliveries() -> int:
    """Watches that lack something although no job delivers it: Redis may have lost the job."""
    room = max(0, settings.SCAN_BACKLOG - queue.length(queue.DELIVERIES))
    lost = due_watches(Watch.objects.filter(access_denied_at=None))[:room]
    for watch in lost:
        request_delivery(watch)
    return len(lost) + completion.request_lost(room)


def _ask_for_reconciliation() -> int:
    every = round(settings.RECONCILE_INTERVAL * 1000)
    if not queue.connection().set(_LAST_RECONCILED, timezone.now().isoformat(), nx=True, px=every):
        return 0
    messages.reconcile()
    return 1


def _free_abandoned_watches() -> None:
    """A worker that dies leaves its watch in `scanning`. When no job is left for it, it is looked at again."""
    for watch in Watch.objects.filter(status=WatchStatus.SCANNING).select_related("repository"):
        jobs = (*messages.jobs_of_watch(watch.pk), *messages.jobs_of_repository(watch.repository_id))
        if not any(map(queue.is_alive, jobs)) and watch_state.put_back(Watch.objects.filter(pk=watch.pk)):
            log.warning("%s was left by its worker: it is looked at again", watch)
            request_snapshot(watch.repository, planned=True)
