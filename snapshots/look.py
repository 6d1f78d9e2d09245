"""Look: what the remote has now, brought into the clone, written down, and told to every watching app."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from django.db.models import F

from repositories import access
from repositories.access import Seen
from repositories.errors import (
    AccessDenied,
    CloneDamaged,
    CommitGone,
    DocoraError,
    ForbiddenAddress,
    GitError,
    InvalidUrl,
)
from repositories.git import clones
from repositories.git.clones import Listener, Tip
from repositories.models import Repository, Watch, WatchStatus
from repositories.repo_lock import HeldLock, repo_lock
from repositories.repo_lock.slots import fetch_slot
from snapshots import circuit, manifest
from snapshots.delivery.tell import request_deliveries
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
    access.ask_again(repository)
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
    """Only the fetch needs the lock; the pinned commit is read without it."""
    with repo_lock(repository.clone_key, job_id=job_id) as held, fetch_slot(tip.url.address, job_id=job_id):
        # Not before: a watch whose job waits for the lock and comes back later is still pending.
        repository.watches.filter(status=WatchStatus.PENDING).update(status=WatchStatus.SCANNING)
        fetched = _fetch(repository, seen, tip, progress, held)
    if fetched is None:
        return
    try:
        manifest.write(repository.pk, fetched.sha, branch=fetched.branch, fence=held.fence, on_progress=progress.hashed)
    except CloneDamaged:
        Repository.objects.filter(pk=repository.pk).update(needs_repair=True)
        raise
    plan_next_look(repository, changed_now=True)


def _fetch(repository: Repository, seen: Seen, tip: Tip, progress: Progress, held: HeldLock) -> Tip | None:
    """What is pinned now. None if nothing is to be done: the repository is gone, or somebody else was here."""
    others = {row.pk: row for row in Repository.objects.filter(clone_key=repository.clone_key)}
    current = others.pop(repository.pk, None)
    if current is None:
        return None
    refresh = partial(
        clones.refresh,
        repository.clone_key,
        seen.remote,
        anew=current.needs_repair,
        also=[other.commit_sha for other in others.values() if other.commit_sha],
        on_progress=progress.received,
        held=held,
    )
    try:
        # Overtaken since it was seen, it may be older than what is there.
        newest = tip if current.fence == repository.fence else clones.look(seen.remote, repository.ref)
        if newest is None or (newest.sha == current.commit_sha and not current.needs_repair):
            return None
        return _refresh_or_look_again(refresh, newest, seen, repository.ref)
    except AccessDenied:
        raise
    except GitError as error:
        # Counted before the next holder can succeed, so that failures and successes stay in order.
        raise _Counted(circuit.count_failure(repository, error)) from error


def _refresh_or_look_again(refresh: Callable[[Tip], None], tip: Tip, seen: Seen, ref: str) -> Tip | None:
    """Hosts may refuse a commit that is no ref's any more: then what has taken its place is fetched."""
    try:
        refresh(tip)
    except CommitGone:
        newer = clones.look(seen.remote, ref)
        if newer:
            refresh(newer)
        return newer
    return tip


def _restore_synced(repository: Repository, *, is_empty: bool) -> None:
    """Watches whose app has everything are in sync, whatever failed in between; an empty repository has nothing."""
    settled = repository.watches.exclude(status=WatchStatus.SYNCED).filter(
        access_denied_at=None, synced_sequence=F("repository__sequence")
    )
    if not is_empty:
        settled = settled.filter(synced_sequence__gt=0)
    if settled.exists():  # a reader waits for nobody, a writer may
        settled.update(**Watch.FRESH | {"status": WatchStatus.SYNCED})
