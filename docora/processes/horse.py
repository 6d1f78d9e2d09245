"""A work horse that stays for more than one job: the reins between it and its worker.

A socket pair, one end each. The worker writes which job is next; the horse writes a mark when it takes one up, and
another when it has done it and stays. A closed end says the rest: to the horse, that nobody needs it any more; to the
worker, that the horse has ended, as RQ's own does after every job.
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

# No older horse gets another job: what jobs have left behind in it goes with it.
LIFETIME = 60.0
# One whose memory has ever grown beyond this had a large job; the next one is small again.
_GROWTH = 1.5
# One that does not take up a job within so many seconds is frozen.
_PATIENCE = 5.0
_TAKEN = b"!"
_DONE = b"."


_workers_ends: WeakSet[socket.socket] = WeakSet()


def _close_workers_ends() -> None:
    """No other child of the worker keeps one open, and so hides from the horse that the worker is gone."""
    for end in _workers_ends:
        end.close()


os.register_at_fork(after_in_child=_close_workers_ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    job_id: str
    queue: str
    execution_id: str


class Reins:
    """Made before the fork; then each side takes its end."""

    def __init__(self) -> None:
        self._worker, self._horse = socket.socketpair()
        _workers_ends.add(self._worker)
        self._too_old_at = time.monotonic() + LIFETIME
        self.horse_pid = 0

    def in_the_worker(self, horse_pid: int) -> None:
        self._horse.close()
        self.horse_pid = horse_pid

    def in_the_horse(self) -> "HorseEnd":
        return HorseEnd(self._horse)

    @property
    def too_old(self) -> bool:
        return time.monotonic() > self._too_old_at

    def hand(self, order: Order) -> bool:
        """Give the horse, which has done its job, the next one; False if it is too old, frozen or dead."""
        with contextlib.suppress(OSError):
            if not self.too_old and self._worker.recv(1, socket.MSG_DONTWAIT) == _DONE:
                self._worker.sendall(json.dumps(asdict(order)).encode() + b"\n")
                return self._is_taken()
        return False

    def _is_taken(self) -> bool:
        self._worker.settimeout(_PATIENCE)
        try:
            return self._worker.recv(1) == _TAKEN
        except TimeoutError:
            # From here on the horse cannot say it any more, and so does not begin.
            self._worker.shutdown(socket.SHUT_RD)
            return self._worker.recv(1, socket.MSG_DONTWAIT) == _TAKEN
        finally:
            self._worker.settimeout(None)

    def has_done_its_job(self) -> bool:
        """Waits; False if the horse ends. The mark is only looked at: a signal may interrupt who waits, at any time."""
        with contextlib.suppress(ConnectionResetError):
            return self._worker.recv(1, socket.MSG_PEEK) == _DONE
        return False

    def drop(self) -> None:
        """The horse ends by itself, as soon as it has nothing to do."""
        self._worker.close()

    def put_down(self) -> None:
        """For a horse that has nothing to do: end it now, even if it is frozen."""
        self.drop()
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
                self._end.sendall(_TAKEN)
                return Order(**json.loads(line))
        return None


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
