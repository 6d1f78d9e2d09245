"""How many threads of a web process may wait for a git host, an endpoint or a change.

A request that dials a git host or an endpoint, or that waits for changes, keeps its thread for up to half a minute; one
that reads a large file keeps it for as long as its client takes. Such requests take a seat first. There are seats for
three quarters of the threads, so the other requests, /health among them, are always answered at once. Waiting for
changes takes at most half of the threads, and the calls of one app at most half of the seats, so neither can keep the
calls of other apps from being made.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import redis
from django.conf import settings
from django.db import connection

from docora.limits import rate
from repositories.errors import Busy, TooManyAtOnce
from repositories.models import App

_PAUSE = 1.0
_SEATS = max(1, settings.WEB_THREADS * 3 // 4)
_CALLS_OF_ONE_APP = max(1, _SEATS // 2)

_seats = threading.BoundedSemaphore(_SEATS)
_seats_for_waiting = threading.BoundedSemaphore(max(1, settings.WEB_THREADS // 2))
_calls: Counter[int] = Counter()
_calls_guard = threading.Lock()
_leaving = threading.Event()


@contextmanager
def calling(app: App) -> Iterator[None]:
    """A seat for a call to a git host or to the app's endpoint; TooManyAtOnce or Busy if there is none."""
    with _taken(_seats) as has_seat:
        if not has_seat:
            raise Busy
        with _calls_guard:
            if _calls[app.pk] >= _CALLS_OF_ONE_APP:
                raise TooManyAtOnce
            _calls[app.pk] += 1
        try:
            yield
        finally:
            with _calls_guard:
                _calls[app.pk] -= 1


@contextmanager
def pinging(app: App) -> Iterator[None]:
    """A seat for the one ping of this app that may be under way, whichever web process began it."""
    ping = rate.connection().lock(f"docora:ping:{app.pk}", timeout=4 * settings.NOTICE_TIMEOUT, blocking=False)
    try:
        is_only_one = ping.acquire()
    except redis.RedisError:
        is_only_one = True  # without Redis nothing is limited but the seats of this process
    if not is_only_one:
        raise TooManyAtOnce
    try:
        with calling(app):
            yield
    finally:
        with suppress(redis.RedisError):
            ping.release()


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    """Return when the condition holds, when the time is up, when no seat is free or when the process ends.

    No database connection is held during the pauses.
    """
    deadline = time.monotonic() + seconds
    with _taken(_seats_for_waiting) as may_wait, _taken(_seats) as has_seat:
        while may_wait and has_seat and not condition():
            connection.close()
            pause = min(_PAUSE, deadline - time.monotonic())
            if pause <= 0 or _leaving.wait(pause):
                return


def end_waiting() -> None:
    """The process is asked to end: requests that only wait for changes must not hold it."""
    _leaving.set()


@contextmanager
def _taken(seats: threading.Semaphore) -> Iterator[bool]:
    """Whether one of the seats could be had; it is free again at the end."""
    is_taken = seats.acquire(blocking=False)
    try:
        yield is_taken
    finally:
        if is_taken:
            seats.release()
