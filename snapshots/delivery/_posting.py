"""Many POSTs at once to one host, by libcurl. Bytes move while `wait` is called, and stand still otherwise.

Every address that is dialled is checked. Redirects are not followed, and the proxies, cookies and passwords of the
environment are ignored. docs/decisions/0010 says why it is libcurl.
"""

import errno
import math
import os
import select
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import pycurl
from yarl import URL

from repositories.base import network, proxy
from repositories.base.proxy import Proxy
from repositories.errors import ForbiddenAddress
from snapshots.models import is_accepted

T = TypeVar("T")

_KEPT = 2048
# An answer is read up to here, so that its connection can be used again. A longer one costs the connection.
_READ_OFF = 1 << 16
_LONGEST_HEAD = 1 << 16
# Seconds, because `poll` takes no endless number.
_LONGEST_WAIT = 3600.0
_FIXED_HEADERS = ("User-Agent: Docora", "Accept-Encoding: identity", "Expect:")
_STOP = -1
"""What a function that libcurl calls returns to end the transfer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came back: a status, or the reason why there is none. `error_class` is for machines."""

    status: int | None
    error: str = ""
    error_class: str = ""
    reason: str = ""
    """The words beside a status that is not 2xx."""
    retry_after: str = ""
    body: bytes = b""


class Poster(Generic[T]):
    """`begin` requests, each with a tag; `wait` returns the tags of those that have been answered."""

    def __init__(self, base_url: str, *, ca_file: Path | None) -> None:
        self._target = _Target.parse(base_url)
        self._options = _options(self._target.proxy, ca_file)
        self._idle: list[_Lane] = []
        self._under_way: dict[T, _Lane] = {}
        self._tags: dict[Any, T] = {}
        self._sockets = select.poll()
        self._call_at = math.inf
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_SOCKETFUNCTION, self._watch_socket)
        self._multi.setopt(pycurl.M_TIMERFUNCTION, self._set_timer)

    def close(self) -> None:
        """Requests that are under way are cut off."""
        for lane in [*self._under_way.values(), *self._idle]:
            lane.handle.close()
        self._multi.close()

    def begin(self, tag: T, url: str, headers: dict[str, str], body: bytes) -> None:
        lane = self._idle.pop() if self._idle else _Lane(self._target, self._options)
        lane.prepare(url, headers, body)
        self._under_way[tag] = lane
        self._tags[lane.handle] = tag
        self._multi.add_handle(lane.handle)

    def give_up(self, tag: T) -> None:
        """Nobody waits for this one any more; its connection is closed."""
        lane = self._under_way.pop(tag)
        del self._tags[lane.handle]
        self._multi.remove_handle(lane.handle)
        lane.forget_body()
        self._idle.append(lane)

    def wait(self, seconds: float) -> list[tuple[T, Reply]]:
        """Move on with all that is under way, for at most this time; returns what has been answered."""
        patience = max(0.0, min(seconds, self._call_at - time.monotonic(), _LONGEST_WAIT))
        for number, events in self._sockets.poll(math.ceil(patience * 1000)):
            self._multi.socket_action(number, _as_curl_says(events))
        if time.monotonic() >= self._call_at:
            self._call_at = math.inf
            self._multi.socket_action(pycurl.SOCKET_TIMEOUT, 0)
        return self._finished()

    def _finished(self) -> list[tuple[T, Reply]]:
        found, left = [], 1
        while left:
            left, answered, failed = self._multi.info_read()
            for handle, code, said in [*((handle, 0, "") for handle in answered), *failed]:
                tag = self._tags[handle]
                found.append((tag, self._under_way[tag].reply(code, said)))
                self.give_up(tag)
        return found

    def _set_timer(self, milliseconds: int) -> None:
        """The library wants to be called then, although nothing has happened; a negative number: never."""
        self._call_at = time.monotonic() + milliseconds / 1000 if milliseconds >= 0 else math.inf

    def _watch_socket(self, wanted: int, number: int, *_: object) -> None:
        """The library wants to be called when this may be done with a socket."""
        if wanted == pycurl.POLL_REMOVE:
            self._sockets.unregister(number)
        else:
            readable = select.POLLIN if wanted & pycurl.POLL_IN else 0
            self._sockets.register(number, readable | (select.POLLOUT if wanted & pycurl.POLL_OUT else 0))


def _as_curl_says(events: int) -> int:
    # A socket that has failed is read and written, and so the library finds out.
    failed = events & ~(select.POLLIN | select.POLLOUT)
    readable = pycurl.CSELECT_IN if failed or events & select.POLLIN else 0
    return readable | (pycurl.CSELECT_OUT if failed or events & select.POLLOUT else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    host: str
    address: str
    """With the port, as people know it."""
    plain: bool
    proxy: Proxy | None

    @classmethod
    def parse(cls, base_url: str) -> "_Target":
        parts = urlsplit(base_url)
        host = parts.hostname or ""
        return cls(
            host=host,
            address=parts.netloc.rpartition("@")[2],
            plain=parts.scheme == "http",
            proxy=proxy.for_host(host),
        )

    def check(self, dialled: str) -> None:
        """Through a proxy, what can be checked is its own address, and a target that is an address itself."""
        if self.proxy:
            proxy.check_own_address(dialled)
            proxy.check_target(self.host, plain=self.plain)
        else:
            network.check_address(dialled, plain=self.plain)


class _Lane:
    """One request at a time, and what has come back of it."""

    def __init__(self, target: _Target, options: dict[int, Any]) -> None:
        self._target = target
        self._url = ""
        self.handle = pycurl.Curl()
        for option, value in options.items():
            self.handle.setopt(option, value)
        self.handle.setopt(pycurl.HEADERFUNCTION, self._take_head)
        self.handle.setopt(pycurl.WRITEFUNCTION, self._take_body)
        self.handle.setopt(pycurl.OPENSOCKETFUNCTION, self._open_socket)

    def prepare(self, url: str, headers: dict[str, str], body: bytes) -> None:
        self._head: list[bytes] = []
        self._head_size = self._read = 0
        self._body = b""
        self._forbidden = ""
        if url != self._url:
            self.handle.setopt(pycurl.URL, str(URL(url)))  # in ASCII, as it goes over the wire
            self._url = url
        lines = [f"{name}: {value}" for name, value in headers.items()]
        self.handle.setopt(pycurl.HTTPHEADER, [*_FIXED_HEADERS, *lines])
        self.handle.setopt(pycurl.POSTFIELDSIZE_LARGE, len(body))
        self.handle.setopt(pycurl.POSTFIELDS, body)

    def forget_body(self) -> None:
        """It may be large, and the next one may be long in coming."""
        self.handle.setopt(pycurl.POSTFIELDS, b"")

    def _take_head(self, line: bytes) -> int | None:
        if line.startswith(b"HTTP/") and self._head and not self._head[-1].strip():
            self._head.clear()  # a head before this one was informational
        self._head.append(line)
        self._head_size += len(line)
        return _STOP if self._head_size > _LONGEST_HEAD else None

    def _take_body(self, piece: bytes) -> int | None:
        self._read += len(piece)
        self._body += piece[: _KEPT - len(self._body)]
        return _STOP if self._read > _READ_OFF else None

    def _open_socket(self, _purpose: int, found: Any) -> "socket.socket | int":
        """Checks the address that is about to be dialled, so a name that resolves differently later gains nothing."""
        try:
            self._target.check(found.addr[0])
        except ForbiddenAddress as error:
            self._forbidden = str(error)
            return int(pycurl.SOCKET_BAD)  # the next address of the name is tried
        return socket.socket(found.family, found.socktype, found.protocol)

    def reply(self, code: int, said: str) -> Reply:
        """`code` and `said` are the library's error."""
        if code and self._read <= _READ_OFF:  # else we have ended it ourselves, and know enough
            error, kind = self._explain(code, said)
            return Reply(status=None, error=error.rstrip(". ").removesuffix(":"), error_class=kind)
        status = self.handle.getinfo(pycurl.RESPONSE_CODE)
        _, written, reason = [*self._head[0].split(maxsplit=2), b"", b""][:3]
        if written != b"%d" % status:  # the library takes 2000 for 200
            return Reply(
                status=None, error=f"{self._target.address} answered no status of HTTP", error_class="protocol"
            )
        if is_accepted(status):
            return Reply(status=status, body=self._body)
        return Reply(
            status=status,
            reason=reason.strip().decode(errors="surrogateescape"),
            retry_after=self._header(b"retry-after"),
            body=self._body,
        )

    def _header(self, name: bytes) -> str:
        """The value of the first of this name, which is in lower case."""
        found = (value for key, _, value in (line.partition(b":") for line in self._head) if key.lower() == name)
        return next(found, b"").strip().decode(errors="replace")

    def _explain(self, code: int, said: str) -> tuple[str, str]:
        """What went wrong, in words and for machines."""
        host, number = self._target.address, self.handle.getinfo(pycurl.OS_ERRNO)
        cause = os.strerror(number) if number else said
        if code == pycurl.E_COULDNT_CONNECT and self._forbidden:
            return self._forbidden, "forbidden-address"
        if self._target.proxy:
            answered = self.handle.getinfo(pycurl.HTTP_CONNECTCODE)
            if answered and not 200 <= answered < 300:
                return f"the proxy does not lead to {host}: it answered {answered}", "proxy"
            if code in {pycurl.E_COULDNT_CONNECT, pycurl.E_COULDNT_RESOLVE_PROXY}:
                return f"no connection to the proxy on the way to {host}: {cause}", "proxy"
        if code == pycurl.E_COULDNT_CONNECT and number == errno.ECONNREFUSED:
            return f"connection refused by {host}", "connection"
        if code in {pycurl.E_SEND_ERROR, pycurl.E_RECV_ERROR} and number == errno.ECONNRESET:
            return f"{host} reset the connection", "connection"
        words, kind = _MEANINGS.get(code, ("{host} does not speak HTTP as expected: {said}", "protocol"))
        return words.format(host=host, cause=cause, said=said.removeprefix("SSL certificate problem: ")), kind


# What the library's errors mean; all others: the peer does not speak HTTP.
_MEANINGS = {
    pycurl.E_COULDNT_RESOLVE_HOST: ("the name of {host} cannot be resolved", "dns"),
    pycurl.E_COULDNT_CONNECT: ("no connection to {host}: {cause}", "connection"),
    pycurl.E_SEND_ERROR: ("no connection to {host}: {cause}", "connection"),
    pycurl.E_RECV_ERROR: ("no connection to {host}: {cause}", "connection"),
    pycurl.E_GOT_NOTHING: ("{host} closed the connection without an answer", "connection"),
    pycurl.E_PARTIAL_FILE: ("{host} closed the connection in the middle of its answer", "connection"),
    pycurl.E_PEER_FAILED_VERIFICATION: ("the certificate of {host} is not accepted: {said}", "tls"),
    pycurl.E_SSL_CONNECT_ERROR: ("no TLS with {host}: {said}", "tls"),
    pycurl.E_SSL_CACERT_BADFILE: ("no TLS with {host}: {said}", "tls"),
}


def _options(through: Proxy | None, ca_file: Path | None) -> dict[int, Any]:
    options: dict[int, Any] = {
        pycurl.POST: 1,
        pycurl.NOSIGNAL: 1,
        pycurl.HTTP_VERSION: pycurl.CURL_HTTP_VERSION_1_1,
        pycurl.PROTOCOLS: pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS,
        pycurl.PROXY: through.url if through else "",  # an empty one: not that of the environment either
    }
    if through and through.user:
        options |= {pycurl.PROXYUSERNAME: through.user, pycurl.PROXYPASSWORD: through.password}
    # The authorities of the setting, or those that Python itself believes.
    paths = ssl.get_default_verify_paths()
    authorities = {pycurl.CAINFO: paths.cafile, pycurl.CAPATH: paths.capath}
    if ca_file:
        authorities = {pycurl.CAINFO: str(ca_file)}
    return options | {option: path for option, path in authorities.items() if path}
