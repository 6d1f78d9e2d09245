"""What the HTTP clients share: an event loop that takes turns with the database, checked addresses, and Retry-After."""

import asyncio
import errno
import socket
from collections.abc import Coroutine
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from django.utils import timezone

from repositories.base import network
from repositories.errors import ForbiddenAddress

_LONGEST_RETRY_AFTER = 24 * 3600.0

T = TypeVar("T")


class PausingLoop(asyncio.SelectorEventLoop):
    """Its clock stands still while the loop does not run: a wait for the database is no time-out of the peer."""

    def __init__(self) -> None:
        super().__init__()
        self._left_at = super().time()
        self._stood_still = 0.0

    def time(self) -> float:
        return super().time() - self._stood_still

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        self._stood_still += super().time() - self._left_at
        try:
            return self.run_until_complete(work)
        finally:
            self._left_at = super().time()


def checked_socket(info: tuple[Any, ...], *, plain: bool) -> socket.socket:
    """Checks the address that is about to be dialled, so a name that resolves differently later gains nothing."""
    family, kind, protocol, _, address = info
    try:
        network.check_address(address[0], plain=plain)
    except ForbiddenAddress as error:
        # Only an OSError lets the next address of the name be tried.
        raise PermissionError(errno.EPERM, str(error)) from None
    return socket.socket(family, kind, protocol)


def seconds_of(retry_after: str) -> float | None:
    """Retry-After is a number of seconds or a date; at most a day is believed."""
    try:
        if retry_after.isascii() and retry_after.isdecimal():
            seconds = float(retry_after)
        else:
            seconds = (parsedate_to_datetime(retry_after) - timezone.now()).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(max(0.0, seconds), _LONGEST_RETRY_AFTER)
