"""The git host's HTTP: which repository a request is for, whether it is let in, and how an answer breaks off."""

import base64
import binascii
import itertools
import re
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from docora.demo.git_backend import Backend, Body

if TYPE_CHECKING:
    from docora.demo.githost import GitFault, GitHost, HostedRepository, Kind
    from docora.demo.github_api import GitHubApi

_ROUTE = re.compile(r"/(?P<name>[^/]+/[^/]+?)(?:\.git)?/(?P<endpoint>info/refs|git-upload-pack|git-receive-pack)")
_COMMAND = re.compile(rb"[0-9a-f]{4}command=([a-z-]+)")
_NO_PASSWORD = ("", "x-oauth-basic")
_NO_HEADERS: Mapping[str, str] = {}


class Server(ThreadingHTTPServer):
    """Knows its connections, so that it can end them: a client may keep one open for ever."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, host: "GitHost") -> None:
        self.host = host
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error of the host's."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)

    def end_connections(self) -> None:
        with self._connections_lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Dropped(Exception):
    """The client is gone, or a fault has cut the connection: nothing more can be said on it."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        with suppress(_Dropped):
            self._answer()

    do_POST = do_GET

    def log_message(self, format: str, *_: object) -> None:
        """Requests are recorded by the host, not printed."""

    def _answer(self) -> None:
        body = Body(self.rfile, self.headers)
        if self.server.host.api and self.path.startswith("/api/"):
            return self._answer_api(self.server.host.api, b"".join(body))
        route = _ROUTE.fullmatch(unquote(urlsplit(self.path).path))
        if route is None:
            return self._refuse(404, body)
        kind = _kind(route["endpoint"], body)
        host, token = self.server.host, _token(self.headers)
        repository, request = host.record(route["name"], kind, token)
        fault = host.fault_for(repository, kind)
        if fault.hang:
            self._hang(fault)
        request.status = fault.status or host.refusal(repository, token) or 200
        if request.status != 200 or repository is None:
            endpoint = f"{route['endpoint']}?{urlsplit(self.path).query}"
            return self._refuse(request.status, body, fault.headers(endpoint))
        return self._serve(repository, route["endpoint"], body, fault)

    def _answer_api(self, api: "GitHubApi", body: bytes) -> None:
        authorization = self.headers.get("Authorization", "")
        status, headers, content = api.answer(self.command, urlsplit(self.path).path, authorization, body)
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: int, body: Body, headers: Mapping[str, str] = _NO_HEADERS) -> None:
        for _ in body:  # what the client still sends would be read as its next request
            pass
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _serve(self, repository: "HostedRepository", endpoint: str, body: Body, fault: "GitFault") -> None:
        with Backend(repository.path, self._cgi_variables(endpoint), body) as backend:
            headers = backend.headers()
            self.send_response(int(headers.get("Status", "200").split()[0]))
            for name, value in headers.items():
                if name != "Status":
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._send(backend.output(), fault)
            self.close_connection |= not backend.took_the_whole_body()

    def _cgi_variables(self, endpoint: str) -> dict[str, str]:
        return {
            "REQUEST_METHOD": self.command,
            "PATH_INFO": f"/{endpoint}",
            "QUERY_STRING": urlsplit(self.path).query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": self.client_address[0],
        }

    def _send(self, output: Iterator[bytes], fault: "GitFault") -> None:
        if fault.breaks_after is not None:
            head, output = _split(output, fault.breaks_after)
            self._send_chunk(head)
            self._break(fault)
        if fault.bytes_per_second:
            output = _throttled(output, fault.bytes_per_second, fault.lifted)
        for piece in output:
            self._send_chunk(piece)
        self._write(b"0\r\n\r\n")

    def _break(self, fault: "GitFault") -> None:
        if fault.drop_after is not None:
            self._drop()
        self._hang(fault)

    def _send_chunk(self, piece: bytes) -> None:
        if piece:  # an empty chunk would end the answer
            self._write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _write(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
        except OSError:
            self.close_connection = True
            raise _Dropped from None

    def _hang(self, fault: "GitFault") -> None:
        """Say nothing until the fault is lifted, the host closes or the client gives up."""
        while not fault.lifted.wait(0.02):
            if self.server.host.closing.is_set() or self._client_is_gone():
                self.close_connection = True
                raise _Dropped

    def _client_is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        with suppress(OSError):
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        return True

    def _drop(self) -> None:
        """Reset the connection instead of closing it in good order."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        raise _Dropped


def _kind(endpoint: str, body: Body) -> "Kind":
    if endpoint == "info/refs":
        return "advertise"
    if endpoint == "git-receive-pack":
        return "push"
    command = _COMMAND.match(body.opening())
    return "ls-refs" if command and command[1] == b"ls-refs" else "fetch"


def _token(headers: Message) -> str:
    """The password of basic authentication, or the user name where the password says nothing."""
    scheme, _, encoded = headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    with suppress(binascii.Error, UnicodeDecodeError):
        user, _, password = base64.b64decode(encoded).decode().partition(":")
        return user if password in _NO_PASSWORD else password
    return ""


def _split(output: Iterator[bytes], at: int) -> tuple[bytes, Iterator[bytes]]:
    """The first `at` bytes, or half of an output that is not longer than that; and the rest."""
    start = b""
    while len(start) <= at and (piece := next(output, b"")):
        start += piece
    cut = at if at < len(start) else len(start) // 2
    return start[:cut], itertools.chain([start[cut:]], output)


def _throttled(output: Iterator[bytes], bytes_per_second: int, lifted: threading.Event) -> Iterator[bytes]:
    size = max(1, bytes_per_second // 20)
    for piece in output:
        for start in range(0, len(piece), size):
            slice_ = piece[start : start + size]
            yield slice_
            lifted.wait(len(slice_) / bytes_per_second)
