"""One lock per repository: whoever touches a clone holds it.

    with repo_lock("owner/name", job_id=job.id) as held:
        with held.inherit() as fd:
            git = Popen([...], start_new_session=True, pass_fds=(fd,))
        with held.guarding(git.pid):
            git.communicate()
        held.check()

Guaranteed: at most one child that inherited the lock runs on a clone, in any number of workers on any
number of hosts, whoever is killed, frozen or cut off. First come, first served. A dead holder's lock is
free after the TTL at the latest.

Not guaranteed: that Python code inside the `with` runs alone. A process may be frozen between any two
lines and learn that its lock is gone only when it goes on. `check()` before a write narrows that gap;
`fence`, stored with what is written and never allowed to shrink, closes it.

docs/repo-lock.md has the timeline. The parts: repo_lock_claim (asking, waiting, leaving),
repo_lock_held (holding), repo_lock_lease (renewal), repo_lock_server (what Redis keeps), repo_lock_flock
(what the kernel keeps).
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
    "stop_waiting",
]

JANITOR_KEY = "janitor"
JANITOR_TTL = 30.0

_here = Process()


def start_anew() -> None:
    """Forget all that this process knows of locks: it has just been forked, or a test begins."""
    global _here
    _here = Process()


os.register_at_fork(after_in_child=start_anew)


@contextmanager
def repo_lock(key: str, *, job_id: str, wait: float | None = None, ttl: float | None = None) -> Iterator[HeldLock]:
    """Hold the lock on `key`. `wait=0` tries once; inside the same job and thread it is already held.

    Raises LockTimeoutError if it is not free in time, LockLostError at the end if it was lost meanwhile.
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
        # Also when a job's time-out was raised in the midst of acquire or release.
        claim.abandon()
        raise


@contextmanager
def repo_locks(
    keys: Iterable[str], *, job_id: str, wait: float | None = None, ttl: float | None = None
) -> Iterator[dict[str, HeldLock]]:
    """Hold several, taken in sorted order so that no two callers deadlock; `wait` is for all together."""
    end = clock() + (settings.REPO_LOCK_WAIT if wait is None else wait)
    with ExitStack() as stack:
        held = {}
        for key in sorted(set(keys)):
            lock = repo_lock(key, job_id=job_id, wait=max(0.0, end - clock()), ttl=ttl)
            held[key] = stack.enter_context(lock)
        yield held


@contextmanager
def janitor_lock(*, job_id: str, wait: float | None = None) -> Iterator[HeldLock]:
    """The one lock of maintenance that looks at all clones; always taken before a repository's."""
    held_before = _here.held_by(job_id)
    if held_before and JANITOR_KEY not in held_before:
        raise RuntimeError(f"job {job_id} must take the janitor's lock before {', '.join(sorted(held_before))}")
    with repo_lock(JANITOR_KEY, job_id=job_id, wait=wait, ttl=JANITOR_TTL) as held:
        yield held


def lock_status() -> list[LockStatus]:
    """Every held lock with its holder and the waiters that are alive."""
    return _here.server.status()


def force_release(status: LockStatus) -> bool:
    """Free a lock from the holder that was seen; False if it has changed hands since."""
    released = _here.server.leave(Names(status.key), status.token)
    flock.remove_if_free(flock.path_of(status.key))
    return released


def release_after_kill(job_id: str, pid: int) -> None:
    """Free what a job's killed process held on this host, without waiting for the TTL.

    The job id alone would not do: a retried job may run elsewhere under the same id.
    """
    dead = (job_id, socket.gethostname(), pid)
    for status in lock_status():
        if (status.holder.job_id, status.holder.host, status.holder.pid) == dead:
            flock.remove_when_free(flock.path_of(status.key), patience=flock.KILLED_GIT_ENDS_WITHIN, kill=True)
            force_release(status)


def release_leftovers(job_id: str) -> None:
    """Leave whatever an ended job of this process has not left, because a time-out hit the very leaving."""
    for claim in tuple(_here.claims):
        if claim.job_id == job_id:
            claim.abandon()


def stop_waiting() -> None:
    """Let every waiter of this process give up now; safe in a signal handler."""
    _here.stopping = True


def shutdown_repo_lock() -> None:
    """Let waiters give up and close what is idle; whoever still holds a lock can still release it."""
    _here.close()
