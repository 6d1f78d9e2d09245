"""What the HTTP clients share: an event loop that takes turns with the database, checked addresses, and Retry-After."""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
from django.utils import timezone

from repositories.base import network, proxy
from repositories.errors import ForbiddenAddress

_LONGEST_RETRY_AFTER = 24 * 3600.0

T = TypeVar("T")


class PausingLoop(asyncio.SelectorEventLoop):
    """Its clock stops while the loop does not run: time spent in the database does not count towards time-outs."""

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


def open_session(base_url: str, *, ca_file: Path | None, **options: Any) -> aiohttp.ClientSession:
    """A session to one host, directly or through the proxy; every dialled address is checked. Call it inside the loop.

    A proxy sees the headers of the session when it is asked for a connection: secrets go with each request instead.
    """
    parts = urlsplit(base_url)
    host, plain = parts.hostname or "", parts.scheme == "http"
    through = proxy.for_host(host)
    dial: Callable[[tuple[Any, ...]], socket.socket] = partial(checked_socket, plain=plain)
    if through:
        dial = partial(_proxy_socket, target=host, plain=plain)
        options |= {"proxy": through.url}
        options |= {"proxy_auth": aiohttp.BasicAuth(through.user, through.password)} if through.user else {}
    trusted: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca_file) if ca_file else True
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, socket_factory=dial, ssl=trusted),
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        **{"auto_decompress": False, **options},
    )


def _proxy_socket(info: tuple[Any, ...], *, target: str, plain: bool) -> socket.socket:
    """Checks what can be: the proxy's own address, and a target that is an address itself."""

    def check(own_address: str) -> None:
        proxy.check_own_address(own_address)
        proxy.check_target(target, plain=plain)

    return _socket_after(check, info)


def checked_socket(info: tuple[Any, ...], *, plain: bool) -> socket.socket:
    """Checks the address that is about to be dialled, so a name that resolves differently later gains nothing."""
    return _socket_after(partial(network.check_address, plain=plain), info)


def _socket_after(check: Callable[[str], None], info: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, _, address = info
    try:
        check(address[0])
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
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(0.0, seconds), _LONGEST_RETRY_AFTER)


# What each error means; the first that fits.
_MEANINGS: list[tuple[type[BaseException], str]] = [
    (aiohttp.ClientProxyConnectionError, "no connection to the proxy on the way to {host}: {cause}"),
    (aiohttp.ClientHttpProxyError, "the proxy does not lead to {host}: it answered {status}"),
    (aiohttp.ClientConnectorDNSError, "the name of {host} cannot be resolved"),
    (aiohttp.ClientConnectorCertificateError, "the certificate of {host} is not accepted: {cause}"),
    (aiohttp.ClientSSLError, "no TLS with {host}: {cause}"),
    (ssl.SSLError, "no TLS with {host}: {cause}"),
    (ConnectionRefusedError, "connection refused by {host}"),
    (ConnectionResetError, "{host} reset the connection"),
    (aiohttp.ServerDisconnectedError, "{host} closed the connection without an answer"),
    (aiohttp.ClientPayloadError, "{host} closed the connection in the middle of its answer"),
    (aiohttp.ClientConnectionError, "no connection to {host}: {cause}"),
    (OSError, "no connection to {host}: {cause}"),
    (Exception, "{host} does not speak HTTP as expected: {cause}"),
]


def _reason_of(error: BaseException) -> str:
    """The reason alone: the full text of an OpenSSL error names a line of a C file."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return getattr(error, "strerror", None) or ""


def explain(error: Exception, host: str, *, may_quote: bool = True) -> str:
    """The reason in words. A failed connection is told by the error of the operating system.

    Without `may_quote` nothing of the library's own text, which may have what was sent in it.
    """
    cause = getattr(error, "os_error", None) or error
    if isinstance(cause, PermissionError):  # of `checked_socket`
        return str(cause.strerror).rstrip(".")
    words = next(words for type_, words in _MEANINGS if isinstance(error, type_) or isinstance(cause, type_))
    said = getattr(cause, "verify_message", None) or _reason_of(cause) or (may_quote and str(cause))
    told = words.format(host=host, cause=said or "", status=getattr(cause, "status", ""))
    return told.rstrip(". ").removesuffix(":")
