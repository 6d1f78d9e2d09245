"""Look: ask the remote for its tip, fetch it under the lock, write the manifest, and request the deliveries."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

from django.utils import timezone
from rq.timeouts import JobTimeoutException

from repositories import access, circuit, hints, timing, watch_state
from repositories.access import Seen
from repositories.base import counters, log_context
from repositories.errors import (
    AccessDenied,
    CloneDamaged,
    CommitGone,
    ForbiddenAddress,
    GitError,
    InvalidUrl,
    LockLostError,
    LockTimeoutError,
)
from repositories.git import clones
from repositories.git.clones import Listener, Tip
from repositories.hints import Hint
from repositories.models import Repository
from repositories.repo_lock import HeldLock, repo_lock
from repositories.repo_lock.slots import fetch_slot
from snapshots import manifest
from snapshots.delivery.tell import request_deliveries

log = logging.getLogger("docora.snapshots")

# Seconds for which an urgent look waits for the fetch of another one.
_URGENT_PATIENCE = 2.0
# The last two: the operator has taken the host off the list, or its name now leads to a private address.
_FAILURES = (GitError, ForbiddenAddress, InvalidUrl)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Listeners of a snapshot that is being taken: each is called with how many are done, and of how many."""

    received: Listener | None = None
    hashed: Listener | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """The job that takes a snapshot, the hint that asked for it, and where progress and counts go."""

    job_id: str
    progress: Progress
    counts: counters.Counts
    hint: Hint | None
    urgent: bool


class _Counted(Exception):
    """The failure that it comes from has been counted already, under the lock."""

    def __init__(self, pause: float | None) -> None:
        super().__init__()
        self.pause = pause


def take_snapshot(
    repository_id: int,
    *,
    job_id: str,
    progress: Progress = Progress(),  # noqa: B008  frozen
    hint: Hint | None = None,
    urgent: bool = False,
) -> float | None:
    """One round for one repository; its cost follows what changed since the last one.

    A `hint` dates what it finds, and makes its deliveries urgent. An `urgent` look itself waits for no long fetch
    (LockTimeoutError).
    Returns the seconds after which to try again, if it must be before the next planned look.
    """
    repository = Repository.objects.filter(pk=repository_id).first()
    claim = circuit.claim_look(repository) if repository else None
    if repository is None or claim is None:
        return None
    timing.plan_next_look(repository, last_change=manifest.last_change(repository))
    with counters.one_run() as counts, log_context.bound(repository=repository.public_id):
        started = time.monotonic()
        this = _Round(job_id=job_id, progress=progress, counts=counts, hint=hint, urgent=urgent)
        try:
            outcome, pause = _look(repository, this)
        except (LockTimeoutError, LockLostError, JobTimeoutException) as error:
            # An urgent look goes on in the ordinary queue. An ordinary one has had its time.
            if urgent or not isinstance(error, JobTimeoutException):
                claim.give_back()
            raise
        counts.add(counters.LOOKS, "git", outcome)
        counts.observe(counters.LOOK_SECONDS, time.monotonic() - started, "git")
    return pause


def _look(repository: Repository, this: _Round) -> tuple[str, float | None]:
    """What came of it, and the seconds after which to try again, if any."""
    try:
        seen = _bring_up_to_date(repository, this)
    except _Counted as failure:
        return "failed", failure.pause
    except _FAILURES as error:
        return "failed", circuit.count_failure(repository, error)
    if seen is None:
        return "refused", None  # every token: that counts against the watches, not against the repository
    # First: the apps wait for it, and for nothing of what follows.
    request_deliveries(repository, urgent=this.hint is not None)
    has_changed = seen.tip is not None and seen.tip.sha != repository.commit_sha
    if has_changed:
        timing.plan_next_look(repository, last_change=timezone.now())
    circuit.count_success(repository)
    _forget_notice(repository)
    access.recheck_refused_tokens(repository)
    watch_state.settle(repository.watches.all(), is_empty=seen.tip is None)
    return "changed" if has_changed else "unchanged", None


def _forget_notice(repository: Repository) -> None:
    """This look has dealt with it. A notice that came during the look stays: it may be of the next commit."""
    if repository.noticed_at:
        Repository.objects.filter(pk=repository.pk, noticed_at=repository.noticed_at).update(noticed_at=None)


def _bring_up_to_date(repository: Repository, this: _Round) -> Seen | None:
    """Look and fetch with the first token that the remote accepts for both; None if there is none."""
    for seen in access.accepted_tokens(repository):
        try:
            if seen.tip and (seen.tip.sha != repository.commit_sha or repository.needs_repair):
                _fetch_and_write(repository, seen, seen.tip, this)
            elif seen.tip and seen.tip.branch != repository.branch:
                manifest.note_branch(repository, seen.tip.branch)
        except AccessDenied as error:
            access.blame(seen.watches, error)
        else:
            return seen
    return None


def _fetch_and_write(repository: Repository, seen: Seen, tip: Tip, this: _Round) -> None:
    """Only the fetch needs the lock; the pinned commit is read without it."""
    hint = this.hint
    noticed_at = min(filter(None, (repository.noticed_at, hint.at if hint else timezone.now())))
    # First syncs may hold every slot for minutes. The few workers for hints fetch beside them.
    slot = nullcontext() if this.urgent else fetch_slot(tip.url.address, job_id=this.job_id)
    patience = _URGENT_PATIENCE if this.urgent else None
    with repo_lock(repository.clone_key, job_id=this.job_id, wait=patience) as held, slot:
        # Not before: a watch whose job waits for the lock and comes back later is still pending.
        watch_state.begin(repository.watches.all())
        fetched = _fetch(repository, seen, tip, this, held)
    if fetched is None:
        return
    try:
        written = manifest.write(
            repository.pk,
            fetched.sha,
            branch=fetched.branch,
            fence=held.fence,
            noticed_at=noticed_at,
            fetched_at=timezone.now(),
            on_progress=this.progress.hashed,
        )
    except CloneDamaged:
        Repository.objects.filter(pk=repository.pk).update(needs_repair=True)
        raise
    this.counts.add(counters.SNAPSHOTS, by=int(written))
    if not hint:
        hints.note_missed(repository.pk)


def _fetch(repository: Repository, seen: Seen, tip: Tip, this: _Round, held: HeldLock) -> Tip | None:
    """The tip that is pinned now; None if the repository is gone, or another worker has fetched meanwhile."""
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
        on_progress=this.progress.received,
        held=held,
    )
    try:
        # Another worker has begun to fetch since we looked: our tip may be older than its, so look again.
        has_overtaken = current.fetch_fence != repository.fetch_fence
        newest = clones.look(seen.remote, repository.ref) if has_overtaken else tip
        if newest is None or (newest.sha == current.commit_sha and not current.needs_repair):
            return None
        Repository.objects.filter(pk=repository.pk).update(fetch_fence=held.fence)
        with _timed(this.counts):
            return _refresh_or_look_again(refresh, newest, seen, repository.ref)
    except AccessDenied:
        raise
    except GitError as error:
        # Counted before the next holder can succeed, so that failures and successes stay in order.
        raise _Counted(circuit.count_failure(repository, error, while_fetching=True)) from error


@contextmanager
def _timed(counts: counters.Counts) -> Iterator[None]:
    started, outcome = time.monotonic(), "failed"
    try:
        yield
        outcome = "ok"
    finally:
        counts.add(counters.FETCHES, outcome)
        counts.observe(counters.FETCH_SECONDS, time.monotonic() - started)


def _refresh_or_look_again(refresh: Callable[[Tip], None], tip: Tip, seen: Seen, ref: str) -> Tip | None:
    """A host may refuse a commit that no ref names any more: then the ref's new commit is fetched."""
    try:
        refresh(tip)
    except CommitGone:
        newer = clones.look(seen.remote, ref)
        if newer:
            refresh(newer)
        return newer
    return tip
