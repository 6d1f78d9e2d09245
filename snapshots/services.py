"""Look: what the remote has now, brought into the clone, written down, and told to every watching app."""

import logging
import random
from datetime import timedelta

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from repositories import clones
from repositories.access import Seen, tip_for
from repositories.clones import Tip
from repositories.errors import AccessDenied, CloneDamaged, GitError
from repositories.models import Repository, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from snapshots import circuit, manifest
from snapshots.delivery import request_deliveries

log = logging.getLogger("docora.snapshots")


def take_snapshot(repository_id: int, *, job_id: str) -> float | None:
    """One round for one repository; its cost follows what changed since the last one.

    Returns the seconds after which to try again, if it must be before the next planned look.
    """
    repository = Repository.objects.filter(pk=repository_id).first()
    if repository is None or not circuit.lets_through(repository):
        return None
    _plan_next_look(repository)
    try:
        seen = tip_for(repository)
        if seen.tip and (seen.tip.sha != repository.commit_sha or repository.needs_repair):
            _fetch_and_write(repository, seen, seen.tip, job_id)
    except AccessDenied:
        return None  # told to the watches that it concerns; the repository itself is not at fault
    except GitError as error:
        return circuit.count_failure(repository, error)
    circuit.count_success(repository)
    _restore_synced(repository, is_empty=seen.tip is None)
    request_deliveries(repository)
    return None


def _fetch_and_write(repository: Repository, seen: Seen, tip: Tip, job_id: str) -> None:
    """Only the fetch needs the lock; the pinned commit is read without it.

    With the lock granted, look again: the repository may be gone, or somebody else may have fetched the tip.
    """
    with repo_lock(repository.clone_key, job_id=job_id) as held:
        repository.watches.filter(status=WatchStatus.PENDING).update(status=WatchStatus.SCANNING)
        current = Repository.objects.filter(pk=repository.pk).first()
        if current is None or (current.commit_sha == tip.sha and not current.needs_repair):
            return
        commit = clones.refresh(repository.clone_key, seen.remote, tip, anew=current.needs_repair, held=held)
        fence = held.fence
    try:
        manifest.write(repository.pk, commit, branch=tip.branch, fence=fence)
    except CloneDamaged:
        Repository.objects.filter(pk=repository.pk).update(needs_repair=True)
        raise


def _plan_next_look(repository: Repository) -> None:
    now = timezone.now()
    pause = settings.RESCAN_INTERVAL * random.uniform(0.9, 1)  # noqa: S311  spreads the looks, guards nothing
    Repository.objects.filter(pk=repository.pk).update(
        last_checked_at=now, next_check_at=now + timedelta(seconds=pause)
    )


def _restore_synced(repository: Repository, *, is_empty: bool) -> None:
    """Watches whose app has everything are in sync, whatever failed in between; an empty repository has nothing."""
    settled = repository.watches.exclude(status=WatchStatus.SYNCED).filter(
        access_denied_at=None, synced_sequence=F("repository__sequence")
    )
    if not is_empty:
        settled = settled.filter(synced_sequence__gt=0)
    settled.update(**Watch.FRESH | {"status": WatchStatus.SYNCED})
