"""Waiting for the next snapshot without standing in anybody's way.

A waiter holds a thread, but no database connection while it sleeps. Half of a web process's threads may
wait; who comes when these seats are taken is answered at once, as if the time were up.
"""

import threading
import time
from collections.abc import Callable

from django.conf import settings
from django.db import connection

_PAUSE = 1.0
_seats = threading.BoundedSemaphore(max(1, settings.WEB_THREADS // 2))
_leaving = threading.Event()


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Return when the condition holds, when the time is up, when no seat is free or when the process ends."""
    if not seconds or not _seats.acquire(blocking=False):
        return
    try:
        deadline = time.monotonic() + seconds
        while not condition():
            connection.close()
            pause = min(_PAUSE, deadline - time.monotonic())
            if pause <= 0 or _leaving.wait(pause):
                return
    finally:
        _seats.release()


def send_everybody_home() -> None:
    """The process is asked to end: its stop must not wait for those who wait."""
    _leaving.set()
