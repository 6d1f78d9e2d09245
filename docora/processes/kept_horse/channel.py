"""The socket pair between a worker and the work horse that it keeps.

The worker writes which job is next. The horse writes one byte when it begins a job, and another when it has done it and
waits for the next. A closed end means: to the horse, that it is not needed any more; to the worker, that the horse has
ended, as RQ's own does after every job.
"""

import contextlib
import json
import os
import resource
import signal
import socket
import time
from dataclasses import asdict, dataclass
from weakref import WeakSet

# Seconds: an older horse gets no further job, so what jobs have left behind in it does not grow for long.
LIFETIME = 60.0
# A horse whose memory has ever grown by this factor had a large job; the next one is small again.
_GROWTH = 1.5
# Seconds: a horse that does not begin a job within them is frozen.
_PATIENCE = 5.0
_BEGUN = b"!"
_DONE = b"."

_worker_ends: WeakSet[socket.socket] = WeakSet()


def _close_worker_ends() -> None:
    """If another child of the worker kept one open, the horse would not see that the worker is gone."""
    for end in _worker_ends:
        end.close()


os.register_at_fork(after_in_child=_close_worker_ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    job_id: str
    queue: str
    execution_id: str


class HorseChannel:
    """Made before the fork; then the worker calls `keep_worker_end`, and the horse `horse_end`."""

    def __init__(self) -> None:
        self._worker, self._horse = socket.socketpair()
        _worker_ends.add(self._worker)
        self._too_old_at = time.monotonic() + LIFETIME
        self.horse_pid = 0

    def keep_worker_end(self, horse_pid: int) -> None:
        self._horse.close()
        self.horse_pid = horse_pid

    def horse_end(self) -> "HorseEnd":
        return HorseEnd(self._horse)

    @property
    def too_old(self) -> bool:
        return time.monotonic() > self._too_old_at

    def hand(self, order: Order) -> bool:
        """Give the horse, which has done its job, the next one; False if it is too old, frozen or dead."""
        with contextlib.suppress(OSError):
            if not self.too_old and self._worker.recv(1, socket.MSG_DONTWAIT) == _DONE:
                self._worker.sendall(json.dumps(asdict(order)).encode() + b"\n")
                return self._has_begun()
        return False

    def _has_begun(self) -> bool:
        self._worker.settimeout(_PATIENCE)
        try:
            return self._worker.recv(1) == _BEGUN
        except TimeoutError:
            # From here on the horse cannot write its byte any more, and so does not begin.
            self._worker.shutdown(socket.SHUT_RD)
            return self._worker.recv(1, socket.MSG_DONTWAIT) == _BEGUN
        finally:
            self._worker.settimeout(None)

    def wait_for_done(self) -> bool:
        """False if the horse ends. The byte stays in the socket, because a signal may interrupt the caller."""
        with contextlib.suppress(ConnectionResetError):
            return self._worker.recv(1, socket.MSG_PEEK) == _DONE
        return False

    def close(self) -> None:
        """The horse ends by itself, as soon as it has nothing to do."""
        self._worker.close()

    def kill_idle_horse(self) -> None:
        """At once, even if it is frozen."""
        self.close()
        if not self.horse_pid:
            return
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.horse_pid, signal.SIGKILL)
            os.waitpid(self.horse_pid, 0)


class HorseEnd:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._orders = end.makefile("rb")
        self._usual_memory = _peak_memory() * _GROWTH

    def next_order(self) -> Order | None:
        """Tell the worker that a job is done, and wait for the next; None if the horse is to end."""
        if _peak_memory() > self._usual_memory:
            return None
        with contextlib.suppress(OSError):  # the worker was killed
            self._end.sendall(_DONE)
            if line := self._orders.readline():
                self._end.sendall(_BEGUN)
                return Order(**json.loads(line))
        return None


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
