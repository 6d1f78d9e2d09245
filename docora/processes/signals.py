"""Signals as something to wait for: nothing is interrupted in the middle of its work."""

import select
import signal
import socket
import time
from types import FrameType
from typing import Self

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
HANDLED = (*_STOPPING, signal.SIGCHLD)
ECHO = 1.0
"""Seconds within which a second stop signal is the same request: terminals and make send one each."""


class StopRequests:
    """Counts the requests to stop while it is entered; `wait` also ends when a child has died."""

    def __init__(self) -> None:
        self.count = 0
        self._last = float("-inf")
        self._written_by_signals, self._read_by_wait = socket.socketpair()
        self._written_by_signals.setblocking(False)
        self._read_by_wait.setblocking(False)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._written_by_signals.fileno(), warn_on_full_buffer=False)
        for number in _STOPPING:
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        for number in HANDLED:
            signal.signal(number, signal.SIG_DFL)
        self._written_by_signals.close()
        self._read_by_wait.close()

    def __bool__(self) -> bool:
        return self.count > 0

    def wait(self, seconds: float) -> None:
        """Pause until the next signal, or for so many seconds."""
        if select.select([self._read_by_wait], [], [], seconds)[0]:
            self._read_by_wait.recv(4096)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last > ECHO:
            self.count += 1
            self._last = now
