"""The scheduler's tick: ask for what is due. Any number of ticks at once ask for the same jobs, which are one."""

import logging
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from repositories import pulse, queue
from repositories.models import Repository, Watch, WatchStatus
from repositories.services import request_snapshot
from snapshots.delivery import due as due_watches
from snapshots.delivery import request_delivery
from snapshots.models import Delivery

log = logging.getLogger("docora.schedule")


def tick() -> int:
    """Returns how many jobs were asked for."""
    _free_abandoned_watches()
    _prune_deliveries()
    due = Repository.objects.filter(next_check_at__lte=timezone.now()).order_by("next_check_at")
    asked = 0
    for repository in due.iterator():
        request_snapshot(repository)
        asked += 1
    # Watches whose delivery got lost on the way: the net under the queue.
    for watch in due_watches(Watch.objects.filter(access_denied_at=None)):
        request_delivery(watch)
        asked += 1
    pulse.note_tick()
    return asked


def _free_abandoned_watches() -> None:
    """A worker that dies leaves its watch in scanning; when no job is left for it, it waits for its turn again."""
    scanning = Watch.objects.filter(status=WatchStatus.SCANNING).values_list("pk", "repository_id")
    for watch_id, repository_id in scanning:
        if not queue.is_alive(f"deliver-{watch_id}") and not queue.is_alive(f"snapshot-{repository_id}"):
            Watch.objects.filter(pk=watch_id, status=WatchStatus.SCANNING).update(status=WatchStatus.PENDING)


def _prune_deliveries() -> None:
    old = timezone.now() - timedelta(days=settings.DELIVERY_LOG_DAYS)
    Delivery.objects.filter(attempted_at__lt=old).delete()
