"""Look: what the remote has now, brought into the clone, written down, and told to every watching app."""

import logging
from dataclasses import dataclass

from django.db.models import F

from repositories import access, clones
from repositories.access import Seen
from repositories.clones import Listener, Tip
from repositories.errors import AccessDenied, CloneDamaged, DocoraError, ForbiddenAddress, GitError, InvalidUrl
from repositories.fetch_slots import fetch_slot
from repositories.models import Repository, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from snapshots import circuit, manifest
from snapshots.delivery import request_deliveries
from snapshots.schedule import plan_next_look

log = logging.getLogger("docora.snapshots")

# The last two: the operator has taken the host from the list, or its name leads elsewhere now.
_FAILURES = (GitError, ForbiddenAddress, InvalidUrl)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Who listens while a snapshot is taken: each is called with how many are done, and of how many."""

    received: Listener | None = None
    hashed: Listener | None = None


class _Counted(DocoraError):
    """A failure that has been counted already, under the lock."""

    def __init__(self, pause: float | None) -> None:
        super().__init__()
        self.pause = pause


def take_snapshot(repository_id: int, *, job_id: str, progress: Progress = Progress()) -> float | None:  # noqa: B008  frozen
    """One round for one repository; its cost follows what changed since the last one.

    Returns the seconds after which to try again, if it must be before the next planned look.
    """
    repository = Repository.objects.filter(pk=repository_id).first()
    if repository is None or not circuit.lets_through(repository):
        return None
    plan_next_look(repository)
    try:
        seen = _bring_up_to_date(repository, job_id, progress)
    except _Counted as failure:
        return failure.pause
    except _FAILURES as error:
        return circuit.count_failure(repository, error)
    if seen is None:
        return None  # told to the watches that it concerns; the repository itself is not at fault
    circuit.count_success(repository)
    _restore_synced(repository, is_empty=seen.tip is None)
    request_deliveries(repository)
    return None


def _bring_up_to_date(repository: Repository, job_id: str, progress: Progress) -> Seen | None:
    """With the first token that the remote accepts for looking and fetching; None if there is none."""
    for seen in access.ways_in(repository):
        try:
            if seen.tip and (seen.tip.sha != repository.commit_sha or repository.needs_repair):
                _fetch_and_write(repository, seen, seen.tip, job_id, progress)
        except AccessDenied as error:
            access.blame(seen.watches, error)
        else:
            return seen
    return None


def _fetch_and_write(repository: Repository, seen: Seen, tip: Tip, job_id: str, progress: Progress) -> None:
    """Only the fetch needs the lock; the pinned commit is read without it.

    With the lock granted, look again: the repository may be gone, or somebody else may have fetched the tip.
    """
    with repo_lock(repository.clone_key, job_id=job_id) as held, fetch_slot(tip.url.address, job_id=job_id):
        # Not before: a watch whose job waits for the lock and comes back later is still pending.
        repository.watches.filter(status=WatchStatus.PENDING).update(status=WatchStatus.SCANNING)
        on_this_clone = {row.pk: row for row in Repository.objects.filter(clone_key=repository.clone_key)}
        current = on_this_clone.pop(repository.pk, None)
        if current is None or (current.commit_sha == tip.sha and not current.needs_repair):
            return
        try:
            clones.refresh(
                repository.clone_key,
                seen.remote,
                tip,
                anew=current.needs_repair,
                also=[other.commit_sha for other in on_this_clone.values() if other.commit_sha],
                on_progress=progress.received,
                held=held,
            )
        except AccessDenied:
            raise
        except GitError as error:
            # Counted before the next holder can succeed, so that failures and successes stay in order.
            raise _Counted(circuit.count_failure(repository, error)) from error
        fence = held.fence
    try:
        manifest.write(repository.pk, tip.sha, branch=tip.branch, fence=fence, on_progress=progress.hashed)
    except CloneDamaged:
        Repository.objects.filter(pk=repository.pk).update(needs_repair=True)
        raise
    plan_next_look(repository, changed_now=True)


def _restore_synced(repository: Repository, *, is_empty: bool) -> None:
    """Watches whose app has everything are in sync, whatever failed in between; an empty repository has nothing."""
    settled = repository.watches.exclude(status=WatchStatus.SYNCED).filter(
        access_denied_at=None, synced_sequence=F("repository__sequence")
    )
    if not is_empty:
        settled = settled.filter(synced_sequence__gt=0)
    if settled.exists():  # a reader waits for nobody, a writer may
        settled.update(**Watch.FRESH | {"status": WatchStatus.SYNCED})
