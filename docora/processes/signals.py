"""Signals as something to wait for: nothing is interrupted in the middle of its work."""

import select
import signal
import socket
import time
from types import FrameType
from typing import Self

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ECHO = 1.0
"""Seconds within which a second stop signal is the same request: terminals and make send one each."""


class StopRequests:
    """Counts the requests to stop while it is entered; `wait` also ends when a child has died."""

    def __init__(self) -> None:
        self.count = 0
        self._last = float("-inf")
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)

    def __enter__(self) -> Self:
        signal.set_wakeup_fd(self._bell.fileno(), warn_on_full_buffer=False)
        for number in STOPPING:
            signal.signal(number, self._note)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(-1)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        self._bell.close()
        self._ear.close()

    def __bool__(self) -> bool:
        return self.count > 0

    def wait(self, seconds: float) -> None:
        """Pause until the next signal, or for so many seconds."""
        if select.select([self._ear], [], [], seconds)[0]:
            self._ear.recv(4096)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last > ECHO:
            self.count += 1
            self._last = now
