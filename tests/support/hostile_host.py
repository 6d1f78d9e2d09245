"""A git host that answers whatever a test wants, in git's own framing; nothing behind it is a repository."""

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Headers = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """To one request; the body is sent as it is made, so it can be without end."""

    body: Iterable[bytes] = ()
    status: int = 200
    headers: Headers = field(default_factory=dict)


@dataclass(frozen=True)
class Question:
    path: str
    headers: Headers
    body: bytes

    @property
    def authorization(self) -> str:
        return self.headers.get("Authorization", "")


def packet(content: bytes) -> bytes:
    return b"%04x%s" % (len(content) + 4, content)


END = b"0000"
CAPABILITIES = (
    packet(b"# service=git-upload-pack\n")
    + END
    + b"".join(map(packet, (b"version 2\n", b"ls-refs\n", b"fetch=shallow\n", b"object-format=sha1\n")))
    + END
)


def refusal(text: str) -> Answer:
    """git prints it: `fatal: remote error: text`."""
    return Answer([packet(b"ERR " + text.encode()) + END])


def host(
    *, refs: Iterable[bytes] = (), fetch: Iterable[bytes] = (), capabilities: bytes = CAPABILITIES
) -> Callable[[Question], Answer]:
    """The answers of protocol version 2: who it is, what refs it has, and a pack."""

    def answer(question: Question) -> Answer:
        if "info/refs" in question.path:
            return Answer([capabilities])
        return Answer(refs if b"command=ls-refs" in question.body else fetch)

    return answer


class HostileHost:
    def __init__(self, port: int, scheme: str) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"{scheme}://{self.address}/acme/handbook"
        self.answer: Callable[[Question], Answer] = host()
        self.questions: list[Question] = []


@contextmanager
def hostile_host(tls: ssl.SSLContext | None = None) -> Iterator[HostileHost]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    setattr(server, "cast", cast := HostileHost(server.server_port, "https" if tls else "http"))  # noqa: B010  no attribute of its class
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="hostile host")
    thread.start()
    try:
        yield cast
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with suppress(OSError):
            self._answer()

    do_POST = do_GET

    def handle(self) -> None:
        with suppress(OSError):  # a client that does not believe the certificate goes away
            super().handle()

    def log_message(self, format: str, *_: object) -> None:
        """Nobody reads it."""

    def _answer(self) -> None:
        cast: HostileHost = getattr(self.server, "cast")  # noqa: B009  no attribute of its class
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        question = Question(self.path, dict(self.headers), body)
        cast.questions.append(question)
        answer = cast.answer(question)
        door = "advertisement" if "info/refs" in self.path else "result"
        headers = {"Content-Type": f"application/x-git-upload-pack-{door}"} | answer.headers
        self.send_response(answer.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in answer.body:
            self.wfile.write(piece)
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.unwrap()  # GnuTLS does not believe an end that is not announced
