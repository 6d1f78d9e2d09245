"""A small real forward proxy on 127.0.0.1: CONNECT, and plain requests; it may want a name and a password."""

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class ForwardProxy:
    url: str
    user: str = ""
    password: str = ""
    heads: list[str] = field(default_factory=list)
    """The first line and the headers of each request to the proxy itself."""

    @property
    def expected(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *_: object) -> None:
        """Nobody reads it."""

    def do_CONNECT(self) -> None:
        cast: ForwardProxy = getattr(self.server, "cast")  # noqa: B009  no attribute of its class
        cast.heads.append(f"{self.requestline}\n{self.headers}")
        if cast.user and self.headers.get("Proxy-Authorization") != cast.expected:
            # It says back what it got, as a spiteful proxy might.
            self.send_response(407, f"Not with {self.headers.get('Proxy-Authorization')} {cast.password}")
            self.send_header("Proxy-Authenticate", 'Basic realm="proxy"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as target:
            self.send_response(200, "Connection established")
            self.end_headers()
            threading.Thread(target=_pump, args=(self.connection, target), daemon=True).start()
            _pump(target, self.connection)
        self.close_connection = True


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def forward_proxy(*, user: str = "", password: str = "") -> Iterator[ForwardProxy]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    cast = ForwardProxy(f"http://127.0.0.1:{server.server_port}", user, password)
    setattr(server, "cast", cast)  # noqa: B010  no attribute of its class
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="proxy")
    thread.start()
    try:
        yield cast
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
