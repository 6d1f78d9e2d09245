"""A real git host over HTTP on 127.0.0.1: `git http-backend` behind a small threading server.

It answers as GitHub does: names are case-insensitive and may end in `.git`; a private repository and one
that does not exist look alike (401 without a known token, 404 with a known one that lacks access). Every
request is recorded before it is answered. Leaving the `with` ends every connection and every git child.
"""

import base64
import binascii
import itertools
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPMessage, parse_headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import unquote, urlsplit

from docora.demo.bare import GIT, GIT_ENVIRONMENT, BareRepository
from docora.demo.faults import Fault, Faults
from docora.demo.github_api import GitHubApi

# In protocol 2, an ls-remote is an advertise and an ls-refs; a fetch is both of them and a fetch.
Kind = Literal["advertise", "ls-refs", "fetch", "push"]

_PIECE = 65536
_ROUTE = re.compile(r"/(?P<name>[^/]+/[^/]+?)(?:\.git)?/(?P<door>info/refs|git-upload-pack|git-receive-pack)")
_COMMAND = re.compile(rb"[0-9a-f]{4}command=([a-z-]+)")
_NO_PASSWORD = ("", "x-oauth-basic")
_NO_HEADERS: Mapping[str, str] = {}
# What GitHub allows too.
_SERVER_CONFIG = {
    "http.receivepack": "true",
    "uploadpack.allowAnySHA1InWant": "true",
    "uploadpack.allowFilter": "true",
}


class HostedRepository(BareRepository):
    """A repository and who may read it: everybody, or those whose token is in `private_to`."""

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        url: str,
        private_to: frozenset[str] | None,
        branch: str,
        copy_of: BareRepository | None = None,
    ) -> None:
        super().__init__(path, default_branch=branch, copy_of=copy_of)
        self.name = name
        self.url = url
        self.private_to = private_to


@dataclass(slots=True)
class GitRequest:
    """One request as it came in; the status follows when it is answered."""

    repository: str
    kind: Kind
    token: str
    at: float
    status: int | None = None


@dataclass(eq=False, kw_only=True)
class GitFault(Fault):
    """How the host fails. What happens `after` a number of bytes happens in the middle of a shorter pack."""

    repository: HostedRepository | None = None
    kinds: Collection[Kind] = ("advertise", "ls-refs", "fetch", "push")
    status: int | None = None
    retry_after: int | None = None
    redirect_to: HostedRepository | None = None
    hang: bool = False
    hang_after: int | None = None
    drop_after: int | None = None
    bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        if self.redirect_to:
            self.status = 301

    def concerns(self, repository: HostedRepository | None, kind: Kind) -> bool:
        if kind != "fetch" and (self.breaks_after is not None or self.bytes_per_second):
            return False
        return kind in self.kinds and (self.repository is None or self.repository is repository)

    def headers(self, door: str) -> dict[str, str]:
        """What goes with the status."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"Location": f"{self.redirect_to.url}/{door}"} if self.redirect_to else {})

    @property
    def breaks_after(self) -> int | None:
        """The number of bytes of a pack after which something happens to it."""
        return self.hang_after if self.drop_after is None else self.drop_after


class GitHost:
    """`with GitHost(root) as host:` serves until the block ends.

    It fails on demand: `with host.faults.put(GitFault(status=503, repository=repo)): ...`
    """

    def __init__(self, root: Path) -> None:
        self.requests: list[GitRequest] = []
        self.closing = threading.Event()
        self.faults: Faults[GitFault] = Faults()
        self.api: GitHubApi | None = None
        self._root = root
        self._repositories: dict[str, HostedRepository] = {}
        self._known_tokens: set[str] = set()
        self._lock = threading.Lock()
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="git host")

    @property
    def address(self) -> str:
        """host:port, as in the URLs of its repositories."""
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.faults.lift_all()
        self._server.shutdown()
        self._thread.join()
        self._server.end_connections()
        self._server.server_close()

    def create(
        self,
        name: str,
        *,
        private_to: Collection[str] | None = None,
        default_branch: str = "main",
        copy_of: BareRepository | None = None,
    ) -> HostedRepository:
        """A repository `owner/name`, private to the given tokens or public; empty, or a copy of another one."""
        with self._lock:
            repository = HostedRepository(
                self._root / f"{name}.git",
                name=name,
                url=f"http://{self.address}/{name}",
                private_to=None if private_to is None else frozenset(private_to),
                branch=default_branch,
                copy_of=copy_of,
            )
            self._repositories[name.lower()] = repository
            self._known_tokens.update(private_to or ())
        return repository

    def remove(self, repository: HostedRepository) -> None:
        """Delete the repository, as its owner would."""
        with self._lock:
            del self._repositories[repository.name.lower()]

    def find(self, name: str) -> HostedRepository | None:
        with self._lock:
            return self._repositories.get(name.lower())

    def grant(self, repository: HostedRepository, token: str) -> None:
        """Let a token read a private repository; one that was public is private from now on."""
        with self._lock:
            repository.private_to = (repository.private_to or frozenset()) | {token}
            self._known_tokens.add(token)

    def revoke(self, repository: HostedRepository, token: str) -> None:
        """Take a repository from a token, which stays known: 404 from now on."""
        with self._lock:
            repository.private_to = (repository.private_to or frozenset()) - {token}

    def add_token(self, token: str) -> None:
        """Make a token known that can read nothing private."""
        with self._lock:
            self._known_tokens.add(token)

    def expire_token(self, token: str) -> None:
        """Forget a token: 401 from now on, wherever it may have had access."""
        with self._lock:
            self._known_tokens.discard(token)

    def count(self, repository: HostedRepository, kind: Kind) -> int:
        """How many requests of a kind have come in for a repository."""
        with self._lock:
            return sum(seen.repository == repository.name and seen.kind == kind for seen in self.requests)

    def record(self, name: str, kind: Kind, token: str) -> tuple[HostedRepository | None, GitRequest]:
        with self._lock:
            repository = self._repositories.get(name.lower())
            request = GitRequest(repository.name if repository else name, kind, token, time.time())
            self.requests.append(request)
        return repository, request

    def refusal(self, repository: HostedRepository | None, token: str) -> int | None:
        """The status that keeps a token out; None lets it in."""
        with self._lock:
            if repository and repository.private_to is None:
                return None
            if token not in self._known_tokens:
                return 401
            return None if repository and token in (repository.private_to or ()) else 404

    def backend_environment(self, repository: HostedRepository) -> dict[str, str]:
        config = {"GIT_CONFIG_COUNT": str(len(_SERVER_CONFIG))}
        for number, (key, value) in enumerate(_SERVER_CONFIG.items()):
            config |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        root = {"GIT_PROJECT_ROOT": str(repository.path), "GIT_HTTP_EXPORT_ALL": "1"}
        return GIT_ENVIRONMENT | root | config


class _Server(ThreadingHTTPServer):
    """Knows its connections, so that it can end them: a client may keep one open for ever."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, host: GitHost) -> None:
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
    server: _Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        with suppress(_Dropped):
            self._answer()

    do_POST = do_GET

    def log_message(self, format: str, *_: object) -> None:
        """Requests are recorded by the host, not printed."""

    def _answer(self) -> None:
        body = _Body(self.rfile, self.headers)
        if self.server.host.api and self.path.startswith("/api/"):
            return self._answer_api(self.server.host.api, b"".join(body))
        route = _ROUTE.fullmatch(unquote(urlsplit(self.path).path))
        if route is None:
            return self._refuse(404, body)
        kind = _kind(route["door"], body)
        host, token = self.server.host, _token(self.headers)
        repository, request = host.record(route["name"], kind, token)
        fault = host.faults.take(lambda fault: fault.concerns(repository, kind)) or GitFault()
        if fault.hang:
            self._hang(fault)
        request.status = fault.status or host.refusal(repository, token) or 200
        if request.status != 200 or repository is None:
            door = f"{route['door']}?{urlsplit(self.path).query}"
            return self._refuse(request.status, body, fault.headers(door))
        return self._serve(repository, route["door"], body, fault)

    def _answer_api(self, api: GitHubApi, body: bytes) -> None:
        authorization = self.headers.get("Authorization", "")
        status, headers, content = api.answer(self.command, urlsplit(self.path).path, authorization, body)
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, status: int, body: "_Body", headers: Mapping[str, str] = _NO_HEADERS) -> None:
        for _ in body:  # what the client still sends would be read as its next request
            pass
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _serve(self, repository: HostedRepository, door: str, body: "_Body", fault: GitFault) -> None:
        environment = self.server.host.backend_environment(repository) | self._cgi_variables(door)
        with _Backend(environment, body) as backend:
            headers = backend.headers()
            self.send_response(int(headers.get("Status", "200").split()[0]))
            for name, value in headers.items():
                if name != "Status":
                    self.send_header(name, value)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self._send(backend.output(), fault)
            self.close_connection |= not backend.took_the_whole_body()

    def _cgi_variables(self, door: str) -> dict[str, str]:
        return {
            "REQUEST_METHOD": self.command,
            "PATH_INFO": f"/{door}",
            "QUERY_STRING": urlsplit(self.path).query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": self.client_address[0],
        }

    def _send(self, output: Iterator[bytes], fault: GitFault) -> None:
        if fault.breaks_after is not None:
            head, output = _split(output, fault.breaks_after)
            self._send_chunk(head)
            self._break(fault)
        if fault.bytes_per_second:
            output = _throttled(output, fault.bytes_per_second, fault.lifted)
        for piece in output:
            self._send_chunk(piece)
        self._write(b"0\r\n\r\n")

    def _break(self, fault: GitFault) -> None:
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

    def _hang(self, fault: GitFault) -> None:
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


class _Body:
    """The request's body in pieces, read once, whichever way the client frames it."""

    def __init__(self, stream: BufferedIOBase, headers: Message) -> None:
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        pieces = _chunks(stream) if chunked else _counted(stream, int(headers.get("Content-Length") or 0))
        self._zipped = headers.get("Content-Encoding") == "gzip"
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def opening(self) -> bytes:
        """The first bytes as the client meant them; they stay in the body."""
        first = next(self._pieces, b"")
        self._pieces = itertools.chain([first], self._pieces)
        return zlib.decompressobj(31).decompress(first, 64) if self._zipped else first[:64]


def _counted(stream: BufferedIOBase, length: int) -> Iterator[bytes]:
    while length and (piece := stream.read(min(length, _PIECE))):
        length -= len(piece)
        yield piece


def _chunks(stream: BufferedIOBase) -> Iterator[bytes]:
    while size := int(stream.readline().split(b";")[0], 16):
        yield stream.read(size)
        stream.readline()
    while stream.readline().strip():  # trailers
        pass


class _Backend:
    """One `git http-backend`, fed and read at the same time; leaving the `with` ends it and its children."""

    def __init__(self, environment: dict[str, str], body: _Body) -> None:
        self._process = subprocess.Popen(
            [GIT, "http-backend"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._fed = False
        self._feeder = threading.Thread(target=self._feed, args=(body,), name="git host, request body")
        self._feeder.start()

    def _feed(self, body: _Body) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        with suppress(OSError, ValueError), stdin:
            for piece in body:
                stdin.write(piece)
            self._fed = True

    def headers(self) -> HTTPMessage:
        return parse_headers(self._stdout)

    def output(self) -> Iterator[bytes]:
        return iter(lambda: self._stdout.read1(_PIECE), b"")

    def took_the_whole_body(self) -> bool:
        self._feeder.join()
        return self._fed

    @property
    def _stdout(self) -> Any:
        return self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stdout.close()


def _kind(door: str, body: _Body) -> Kind:
    if door == "info/refs":
        return "advertise"
    if door == "git-receive-pack":
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
