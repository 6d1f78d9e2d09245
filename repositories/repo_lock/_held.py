"""A held lock, as the code inside the `with` sees it."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from repositories.errors import Holder, LockLostError, LockTimeoutError, name_of
from repositories.repo_lock import _flock as flock
from repositories.repo_lock._lease import Lease, clock

log = logging.getLogger("docora.repo_lock")

# The kernel does not tell when an flock is free. This is rare: only a holder that finds an orphan waits.
_POLL = 0.05


class HeldLock:
    """The lock, as every function that changes a clone requires it for an argument."""

    def __init__(self, *, key: str, fence: int, me: Holder, lease: Lease) -> None:
        self.key = key
        self.fence = fence
        self.lease = lease
        self._me = me
        self._flock_file: Path | None = None

    @property
    def lost(self) -> bool:
        return self.lease.lost

    def check(self) -> None:
        if self.lost:
            raise LockLostError(self.key)

    @contextmanager
    def inherit(self) -> Iterator[int]:
        """The descriptor of the clone's flock, for the `pass_fds` of one child at a time.

        Waits for an orphaned child of an earlier holder. At the end this process closes its own copy, so that
        only the child keeps the next holder out.
        """
        self.check()
        self._flock_file = flock.path_of(self.key)
        fd = flock.take(self._flock_file, self._me)
        if fd is None:
            fd = self._wait_for_orphan(self._flock_file)
        try:
            self.check()
            yield fd
        finally:
            os.close(fd)

    def _wait_for_orphan(self, path: Path) -> int:
        started, left_by = clock(), flock.taken_by(path)
        job, whose = self._me.job_id, name_of(left_by)
        log.warning("Job %s waiting for the git that %s left running on %s", job, whose, self.key)
        while (fd := flock.take(path, self._me)) is None:
            self.check()
            waited = clock() - started
            if waited >= settings.REPO_LOCK_WAIT:
                log.error("Job %s timed out after %.1f s waiting for that git on %s", job, waited, self.key)
                raise LockTimeoutError(self.key, left_by, waited)
            if waited >= settings.REPO_LOCK_WAIT / 2:
                flock.end_orphans(path)
            time.sleep(_POLL)
        return fd

    @contextmanager
    def guarding(self, process_group: int) -> Iterator[None]:
        """While inside, losing the lock kills that process group."""
        self.lease.guard(process_group)
        try:
            yield
        finally:
            self.lease.unguard(process_group)
            self.check()

    def remove_flock(self) -> None:
        """Called before the release in Redis, so that the next holder does not find the file in use."""
        if self._flock_file:
            # After a loss the flock may be the next holder's, which removes the file itself.
            flock.tidy(self._flock_file, patience=0 if self.lost else flock.KILLED_GIT_ENDS_WITHIN)
