"""One lock per repository. All code that changes a clone holds it.

    with repo_lock("owner/name", job_id=job.id) as held:
        with held.inherit() as fd:
            git = Popen([...], process_group=0, pass_fds=(fd,))
        with held.guarding(git.pid):
            git.communicate()
        held.check()

Guaranteed: at most one child that inherited the lock runs on a clone, in any number of workers on any
number of hosts, also if workers are killed, frozen or cut off from Redis. Waiters are served in the order in
which they came. The lock of a dead holder is free after the TTL at the latest.

Not guaranteed: that Python code inside the `with` runs alone. A process may be frozen between any two
lines, and finds out that its lock is gone only when it continues. `check()` before a write makes that gap
smaller. `fence` closes it: it is stored with every row that is written, and a smaller one is refused.

docs/repo-lock.md has the timeline. The modules: _claim (acquire, wait, release), _held (what the `with`
yields), _lease (renewal), _server (the state in Redis), _flock (the file lock).
"""

import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from django.conf import settings

from repositories.errors import LockLostError, LockTimeoutError
from repositories.repo_lock import _flock as flock
from repositories.repo_lock._claim import Claim, Process
from repositories.repo_lock._held import HeldLock
from repositories.repo_lock._lease import clock
from repositories.repo_lock._server import LockStatus, Names

__all__ = [
    "HeldLock",
    "LockLostError",
    "LockStatus",
    "LockTimeoutError",
    "force_release",
    "janitor_lock",
    "lock_status",
    "release_after_kill",
    "release_leftovers",
    "repo_lock",
    "repo_locks",
    "shutdown_repo_lock",
    "start_anew",
    "stop_waiting",
]

JANITOR_KEY = "janitor"
JANITOR_TTL = 30.0

_here = Process()


def start_anew() -> None:
    """Forget every lock of this process: it has just been forked, or a test begins."""
    global _here
    if _here.is_this_one:  # a fork has none of its parent's threads
        _here.watchdog.end()
    _here = Process()


os.register_at_fork(after_in_child=start_anew)


@contextmanager
def repo_lock(key: str, *, job_id: str, wait: float | None = None, ttl: float | None = None) -> Iterator[HeldLock]:
    """Hold the lock on `key`. `wait=0` tries once. A nested `with` of the same job and thread gets the same lock.

    Raises LockTimeoutError if the lock is not free in time, and LockLostError at the end if it was lost meanwhile.
    """
    if outer := _here.held_by(job_id).get(key):
        outer.check()
        yield outer
        return
    claim = Claim(_here, key=key, job_id=job_id, ttl=settings.REPO_LOCK_TTL if ttl is None else ttl)
    try:
        yield claim.acquire(settings.REPO_LOCK_WAIT if wait is None else wait)
        claim.release()
    except BaseException:
        # BaseException: the exception of a job's time-out may be raised inside of acquire or release.
        claim.abandon()
        raise


@contextmanager
def repo_locks(
    keys: Iterable[str], *, job_id: str, wait: float | None = None, ttl: float | None = None
) -> Iterator[dict[str, HeldLock]]:
    """Hold several locks, taken in sorted order so that two callers cannot deadlock. `wait` is for all together.

    For code that must change several clones at one moment, such as moving a clone to another key. Nothing in
    Docora needs that today. Deleting an app does not: each of its clones is deleted by a job of its own, which
    takes that one lock, so a clone that is busy for an hour does not hold up the others.
    """
    end = clock() + (settings.REPO_LOCK_WAIT if wait is None else wait)
    with ExitStack() as stack:
        held = {}
        for key in sorted(set(keys)):
            lock = repo_lock(key, job_id=job_id, wait=max(0.0, end - clock()), ttl=ttl)
            held[key] = stack.enter_context(lock)
        yield held


@contextmanager
def janitor_lock(*, job_id: str, wait: float | None = None) -> Iterator[HeldLock]:
    """The one lock of maintenance that looks at all clones. It must be taken before any repository's lock."""
    held_before = _here.held_by(job_id)
    if held_before and JANITOR_KEY not in held_before:
        raise RuntimeError(f"job {job_id} must take the janitor's lock before {', '.join(sorted(held_before))}")
    with repo_lock(JANITOR_KEY, job_id=job_id, wait=wait, ttl=JANITOR_TTL) as held:
        yield held


def lock_status() -> list[LockStatus]:
    """Every held lock with its holder and the waiters that are alive."""
    return _here.server.status()


def force_release(status: LockStatus) -> bool:
    """Free the lock if it still has the holder that `status` names; False if it has another one by now."""
    released = _here.server.leave(Names(status.key), status.token)
    flock.remove_if_free(flock.path_of(status.key))
    return released


def release_after_kill(job_id: str, pid: int) -> None:
    """Free the locks of a job's killed process on this host, without waiting for the TTL.

    The job id alone is not enough: a retried job may run on another host under the same id.
    """
    dead = (job_id, socket.gethostname(), pid)
    for status in lock_status():
        if (status.holder.job_id, status.holder.host, status.holder.pid) == dead:
            flock.remove_when_free(flock.path_of(status.key), patience=flock.KILLED_GIT_ENDS_WITHIN, kill=True)
            force_release(status)


def release_leftovers(job_id: str) -> None:
    """Release what an ended job of this process still holds, because its time-out interrupted the release."""
    for claim in tuple(_here.claims):
        if claim.job_id == job_id:
            claim.abandon()


def stop_waiting() -> None:
    """Make every waiter of this process give up now. Safe in a signal handler."""
    _here.stopping = True


def shutdown_repo_lock() -> None:
    """Make every waiter give up, and close idle connections. A lock that is still held can still be released."""
    _here.close()
