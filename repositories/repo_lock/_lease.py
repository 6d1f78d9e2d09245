"""A lease on a lock, and the one thread per process that renews every lease.

The thread and its callers share no threading.Lock. The job's time-out is an exception that may be raised at
any point of the main thread, also after it has taken such a lock and before it can release it. So they share
only a dictionary, with single operations, and a SimpleQueue: both are atomic.
"""

import contextlib
import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

log = logging.getLogger("docora.repo_lock")

# The holder stops a tenth of the TTL early, so that it has stopped before the server gives the lock to the next.
_SAFE_SHARE = 0.9
# Without leases the thread wakes this often. Most new leases are due later, and need not wake it.
_IDLE = 5.0
# A job that timed out has this long to clean up under its lock.
_GRACE_AFTER_TIMEOUT = 10.0


def clock() -> float:
    """Seconds that also count while the machine is suspended, and that no change of the clock affects."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _end_of_job(now: float) -> float:
    """The last moment to renew: some seconds after the job's time-out, if it has one.

    A job that hangs must not renew for ever, nor one whose time-out was swallowed, as logging does with exceptions.
    """
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    return now + left + _GRACE_AFTER_TIMEOUT if left else math.inf


class Lease:
    """The time for which this process may believe that it holds the lock."""

    def __init__(self, *, key: str, job_id: str, ttl: float, asked: float, renew: Callable[[], bool]) -> None:
        self.key = key
        self.job_id = job_id
        self.ttl = ttl
        self._renew = renew
        self._guarded: set[int] = set()
        self._lost = False
        self._over = False
        self._last_renewal = _end_of_job(asked)
        self._extend(asked)

    def _extend(self, asked: float) -> None:
        self.valid_until = asked + self.ttl * _SAFE_SHARE
        self.renew_at = asked + self.ttl / 3

    @property
    def lost(self) -> bool:
        return self._lost or clock() >= self.valid_until

    @property
    def due(self) -> float:
        return min(self.renew_at, self.valid_until)

    def end(self) -> None:
        self._over = True

    def guard(self, process_group: int) -> None:
        self._guarded.add(process_group)
        if self.lost:
            self._kill_guarded()

    def unguard(self, process_group: int) -> None:
        self._guarded.discard(process_group)

    def tend(self) -> bool:
        """Renew if it is due. False once the lease has ended or is lost."""
        now = clock()
        if self._over:
            return False
        if now >= self.valid_until:
            self.lose()
            return False
        if now >= self.renew_at:
            return self._try_to_renew(now)
        return True

    def _try_to_renew(self, now: float) -> bool:
        if now >= self._last_renewal:
            self.renew_at = math.inf
            return True
        try:
            kept = self._renew()
        except Exception as error:  # any error: the lease is still valid, and the thread has other leases
            log.warning("Job %s could not renew the lock on %s: %s", self.job_id, self.key, error)
            self.renew_at = clock() + min(1.0, self.ttl / 20)
            return True
        if kept:
            self._extend(now)
        elif not self._over:
            self.lose()
        return kept

    def lose(self) -> None:
        if not self._lost:
            self._lost = True
            log.error("Job %s lost the lock on %s", self.job_id, self.key)
        self._kill_guarded()

    def _kill_guarded(self) -> None:
        for process_group in tuple(self._guarded):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process_group, signal.SIGKILL)


class Watchdog:
    """Renews every lease of this process. Its thread is started with the first one."""

    def __init__(self) -> None:
        self._leases: dict[Lease, None] = {}
        self._wakes_at = math.inf
        self._wake = SimpleQueue[None]()
        self._over = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="repo-lock-watchdog", daemon=True)
            self._thread.start()

    def keep(self, lease: Lease) -> None:
        self._leases[lease] = None
        self.start()
        if lease.due < self._wakes_at:
            self._wake.put(None)

    def forget(self, lease: Lease) -> None:
        lease.end()
        self._leases.pop(lease, None)

    def end(self) -> None:
        """End the thread: nothing is renewed any more."""
        self._over = True
        self._wake.put(None)

    def _run(self) -> None:
        # A signal that this thread took would not interrupt a wait of the main thread.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._over:
            # First, so that every lease that is added from now on wakes this thread.
            self._wakes_at = math.inf
            for lease in list(self._leases):
                if not lease.tend():
                    self._leases.pop(lease, None)
            self._wakes_at = min((lease.due for lease in list(self._leases)), default=clock() + _IDLE)
            self._sleep()

    def _sleep(self) -> None:
        with contextlib.suppress(Empty):
            self._wake.get(timeout=max(0.0, self._wakes_at - clock()))
