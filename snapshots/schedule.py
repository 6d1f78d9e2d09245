"""The scheduler's tick: ask for what is due. Any number of ticks at once ask for the same jobs, which are one.

However long everything stood still, no more looks are queued than the backlog holds: what has been due for
longest comes first, the rest follows tick by tick.
"""

import logging
import random
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from repositories.base import pulse, queue
from repositories.models import Repository, Watch, WatchStatus
from repositories.watches import request_snapshot
from snapshots.delivery.tell import due as due_watches
from snapshots.delivery.tell import request_delivery
from snapshots.models import Delivery, Snapshot

log = logging.getLogger("docora.schedule")

_LAST_RECONCILED = "docora:last-reconciled"
_RECONCILE_TIMEOUT = 6 * 3600
# A repository is looked at ten times within its own age: after a minute every six seconds, if that were allowed.
_LOOKS_WITHIN_AGE = 10


def tick() -> int:
    """Returns how many jobs were asked for."""
    _free_abandoned_watches()
    _prune_deliveries()
    asked = _ask_for_looks() + _ask_for_deliveries() + _ask_for_reconciliation()
    pulse.note_tick()
    return asked


def plan_next_look(repository: Repository, *, changed_now: bool = False) -> None:
    """Soon, if the repository has changed lately; less by chance, so that the looks spread."""
    now = timezone.now()
    quiet = 0.0 if changed_now else (now - _last_change(repository)).total_seconds()
    pause = min(max(quiet / _LOOKS_WITHIN_AGE, settings.MIN_RESCAN_INTERVAL), settings.RESCAN_INTERVAL)
    pause *= random.uniform(0.9, 1)  # noqa: S311  guards nothing
    rows = Repository.objects.filter(pk=repository.pk)
    rows.update(last_checked_at=now, next_check_at=now + timedelta(seconds=pause))


def _last_change(repository: Repository) -> datetime:
    newest = Snapshot.objects.filter(repository=repository, sequence=repository.sequence)
    changed = newest.values_list("taken_at", flat=True).first() if repository.sequence else None
    return changed or repository.created_at


def _ask_for_looks() -> int:
    """Who claims a repository asks for it; a claim whose job gets lost ends by itself."""
    now = timezone.now()
    room = max(0, settings.SCAN_BACKLOG - queue.length(queue.SNAPSHOTS))
    claimed = now + timedelta(seconds=settings.RESCAN_INTERVAL)
    asked = 0
    for repository in Repository.objects.filter(next_check_at__lte=now).order_by("next_check_at")[:room]:
        unclaimed = Repository.objects.filter(pk=repository.pk, next_check_at=repository.next_check_at)
        if unclaimed.update(next_check_at=claimed):
            request_snapshot(repository, planned=True)
            asked += 1
    return asked


def _ask_for_deliveries() -> int:
    """Watches whose delivery got lost on the way: the net under the queue."""
    room = max(0, settings.SCAN_BACKLOG - queue.length(queue.DELIVERIES))
    lost = due_watches(Watch.objects.filter(access_denied_at=None))[:room]
    for watch in lost:
        request_delivery(watch)
    return len(lost)


def _ask_for_reconciliation() -> int:
    every = round(settings.RECONCILE_INTERVAL * 1000)
    if not queue.connection().set(_LAST_RECONCILED, timezone.now().isoformat(), nx=True, px=every):
        return 0
    request_reconciliation()
    return 1


def request_reconciliation() -> None:
    queue.enqueue(queue.SNAPSHOTS, "snapshots.jobs.reconcile_all", None, job_id="reconcile", timeout=_RECONCILE_TIMEOUT)


def _free_abandoned_watches() -> None:
    """A worker that dies leaves its watch in scanning; when no job is left for it, it waits for its turn again."""
    scanning = Watch.objects.filter(status=WatchStatus.SCANNING).select_related("repository")
    for watch in scanning:
        if not queue.is_alive(f"deliver-{watch.pk}") and not queue.is_alive(f"snapshot-{watch.repository_id}"):
            still = Watch.objects.filter(pk=watch.pk, status=WatchStatus.SCANNING)
            if still.update(status=WatchStatus.PENDING):
                log.warning("%s was left by its worker: it is looked at again", watch)
                request_snapshot(watch.repository, planned=True)


def _prune_deliveries() -> None:
    old = timezone.now() - timedelta(days=settings.DELIVERY_LOG_DAYS)
    Delivery.objects.filter(attempted_at__lt=old).delete()
