"""Tell: every change to the app that watches, signed, in order, once acknowledged never again.

One run per watch at a time. A run always tells the state of one snapshot, and looks again before it ends.
"""

import logging
import random
from datetime import timedelta

from django.conf import settings
from django.db.models import F, Q
from django.utils import timezone

from repositories import access, clones, queue
from repositories.errors import AccessDenied, CloneDamaged, DocoraError, HostUnavailable, LockTimeoutError
from repositories.models import Repository, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from repositories.services import request_snapshot
from snapshots.models import Snapshot
from snapshots.run import DeliveryFailed, Run, WatchGone
from snapshots.webhooks import WebhookClient

log = logging.getLogger("docora.delivery")

_JOB_TIMEOUT = 4 * 3600
_LONGEST_PAUSE = 3600.0


def request_deliveries(repository: Repository) -> None:
    """One job for each watch that does not have the newest snapshot yet."""
    behind = repository.watches.filter(synced_sequence__lt=F("repository__sequence"))
    due = behind.filter(Q(retry_at=None) | Q(retry_at__lte=timezone.now()))
    for watch_id in due.values_list("pk", flat=True):
        request_delivery(watch_id)


def request_delivery(watch_id: int) -> None:
    queue.enqueue(
        queue.DELIVERIES,
        "snapshots.jobs.deliver",
        watch_id,
        job_id=f"deliver-{watch_id}",
        timeout=_JOB_TIMEOUT,
    )


def deliver(watch_id: int, *, job_id: str) -> float | None:
    """Bring the app up to the newest snapshot; returns the seconds after which to try again, if it must be."""
    watch = Watch.objects.select_related("app", "repository").filter(pk=watch_id).first()
    if watch is None:
        return None
    try:
        # By app and repository, not by watch: a renewed watch must not overtake the run of the old one.
        with repo_lock(f"delivery:{watch.app_id}:{watch.repository_id}", job_id=job_id, wait=0):
            return _deliver_newest(watch)
    except LockTimeoutError:
        return None
    except (WatchGone, Watch.DoesNotExist):
        log.info("Stopped telling %s about %s: it is not watched any more", watch.app, watch.repository)
        return None


def _deliver_newest(watch: Watch) -> float | None:
    try:
        while snapshot := _newest_unknown_to(watch):
            access.prove(watch)
            _tell(watch, snapshot)
    except AccessDenied:
        return None  # the watch has been told why; a new token, or the old one accepted again, resumes it
    except CloneDamaged:
        Repository.objects.filter(pk=watch.repository_id).update(needs_repair=True)
        request_snapshot(watch.repository)
        return None
    except (DeliveryFailed, HostUnavailable) as error:
        return _put_off(watch, error)
    return None


def _newest_unknown_to(watch: Watch) -> Snapshot | None:
    watch.refresh_from_db(fields=["synced_sequence", "retry_count", "access_denied_at", "access_proven_at"])
    newest = Snapshot.objects.filter(repository=watch.repository_id).order_by("sequence").last()
    return newest if newest and newest.sequence > watch.synced_sequence else None


def _tell(watch: Watch, snapshot: Snapshot) -> None:
    Watch.objects.filter(pk=watch.pk).update(status=WatchStatus.SCANNING)
    app = watch.app
    with (
        WebhookClient(app.base_url, timeout=settings.WEBHOOK_TIMEOUT, lanes=app.max_in_flight) as client,
        clones.open_blobs(watch.repository.clone_key) as blobs,
    ):
        Run(watch, snapshot, client, blobs).tell_all()
    _record_synced(watch, snapshot)


def _record_synced(watch: Watch, snapshot: Snapshot) -> None:
    Watch.objects.filter(pk=watch.pk).update(
        **Watch.FRESH | {"status": WatchStatus.SYNCED},
        synced_sequence=snapshot.sequence,
        synced_commit=snapshot.commit_sha,
        synced_at=timezone.now(),
    )
    log.info("%s has %s at %s", watch.app, watch.repository, snapshot.commit_sha[:12])


def _put_off(watch: Watch, error: DocoraError) -> float:
    attempts = watch.retry_count + 1
    pause = min(settings.RETRY_BASE_DELAY * 2.0 ** min(attempts - 1, 30), _LONGEST_PAUSE) * random.uniform(1, 1.25)  # noqa: S311
    pause = max(pause, getattr(error, "retry_after", None) or 0)
    Watch.objects.filter(pk=watch.pk).update(
        status=WatchStatus.PENDING if attempts < settings.MAX_RETRY_ATTEMPTS else WatchStatus.FAILED,
        retry_count=attempts,
        retry_at=timezone.now() + timedelta(seconds=pause),
        last_error_code=error.code,
        last_error=str(error),
    )
    log.warning("Telling %s about %s failed (attempt %d): %s", watch.app, watch.repository, attempts, error)
    return pause
