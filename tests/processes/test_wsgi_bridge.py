"""The bridge from an event loop to a WSGI application: what the application gets, and what its clients get."""

import http.client
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from docora.processes import wsgi_bridge
from docora.processes.wsgi_bridge import Application, Bridge
from docora.short_requests import LARGEST, NO_ROOM, SHORT, ShortAnswer, ShortRequest
from tests.support import served as server
from tests.support.service import wait_until

pytestmark = pytest.mark.any_database

LONG = 5 * SHORT + 7


def served(application: Application, *, threads: int = 2, largest: int = LARGEST) -> AbstractContextManager[int]:
    """The port of a bridge to this application."""

    def runner() -> web.AppRunner:
        front = Bridge(application, threads=threads, largest=largest).front()
        return web.AppRunner(front, keepalive_timeout=5, lingering_time=1, shutdown_timeout=5, auto_decompress=False)

    return server.served(runner)


def call(port: int, method: str, target: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, target, body, {name.replace("_", "-"): value for name, value in headers.items()})
    return connection.getresponse()


class Echo:
    """Keeps what it gets, and answers with the body."""

    def __init__(self) -> None:
        self.environ: dict[str, Any] = {}
        self.body = b""
        self.closed = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.environ, self.body = environ, environ["wsgi.input"].read()
        start_response("201 Created", [("Content-Type", "text/plain"), ("Set-Cookie", " a=1"), ("Set-Cookie", "b=2")])
        yield self.body
        self.closed += 1


def test_a_request_is_what_the_client_sent() -> None:
    echo = Echo()
    with served(echo) as port:
        answer = call(port, "POST", "/a%20b/%C3%A9%2F?x=%20&y=1", b"hello", X_One="1", Content_Type="text/x")
        assert (answer.status, answer.read()) == (201, b"hello")
        assert answer.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    environ = echo.environ
    assert environ["PATH_INFO"].encode("latin-1").decode() == "/a b/é/"
    assert (environ["QUERY_STRING"], environ["REQUEST_METHOD"]) == ("x=%20&y=1", "POST")
    assert (environ["CONTENT_TYPE"], environ["CONTENT_LENGTH"], environ["HTTP_X_ONE"]) == ("text/x", "5", "1")
    assert (environ["REMOTE_ADDR"], environ["SERVER_PORT"]) == ("127.0.0.1", str(port))
    assert echo.closed == 1


def test_headers_that_only_look_like_others_are_dropped_and_repeated_ones_are_joined() -> None:
    echo = Echo()
    with served(echo) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(
            b"GET http://elsewhere/path?q HTTP/1.1\r\nHost: a\r\nX_Forwarded_For: 1.1.1.1\r\n"
            b"X-Forwarded-For: 2.2.2.2\r\nx-forwarded-for: 3.3.3.3\r\nX-Text: \xe9\r\nConnection: close\r\n\r\n"
        )
        assert client.recv(12) == b"HTTP/1.1 201"
    assert echo.environ["HTTP_X_FORWARDED_FOR"] == "2.2.2.2,3.3.3.3"
    assert echo.environ["HTTP_X_TEXT"] == "\xe9"
    assert (echo.environ["PATH_INFO"], echo.environ["QUERY_STRING"]) == ("/path", "q")


@pytest.mark.parametrize(
    ("target", "path"),
    [("/a%0Ab", "/a\nb"), ("//a", "//a"), ("/a/../b/./c", "/a/../b/./c"), ("/%2e%2E/%00", "/../\0"), ("*", "*")],
)
def test_every_path_reaches_the_application_as_it_is(target: str, path: str) -> None:
    echo = Echo()
    with served(echo) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        assert client.recv(12) == b"HTTP/1.1 201"
    assert echo.environ["PATH_INFO"] == path


def test_a_client_that_asks_first_may_send_its_body() -> None:
    with served(Echo()) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"body")
        assert client.recv(12) == b"HTTP/1.1 201"


@pytest.mark.parametrize("length", [0, 1, SHORT, SHORT + 1, LONG])
def test_bodies_and_answers_of_any_length_arrive_whole(length: int) -> None:
    body = bytes(n % 251 for n in range(length))
    with served(Echo()) as port:
        assert call(port, "POST", "/", body).read() == body


def test_a_packed_body_is_not_unpacked() -> None:
    echo = Echo()
    with served(echo) as port:
        call(port, "POST", "/", b"\x1f\x8b not gzip", Content_Encoding="gzip").read()
    assert echo.body == b"\x1f\x8b not gzip"


@pytest.mark.parametrize("length", [10, LONG])
@pytest.mark.parametrize("is_told", [True, False])
def test_head_has_the_headers_alone(length: int, is_told: bool) -> None:
    def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Length", str(length))] if is_told else [])
        return [b"x" * length]

    with served(application) as port:
        answer = call(port, "HEAD", "/")
        assert (answer.status, answer.read()) == (200, b"")
        assert answer.getheader("Content-Length") == (str(length) if is_told or length == 10 else None)


@pytest.mark.parametrize("length", [10, LONG])
def test_clients_that_send_nothing_or_half_hold_no_thread(length: int) -> None:
    with served(Echo(), threads=1) as port:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(8)]
        for client in clients[4:]:
            client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nhalf".encode())
        assert call(port, "POST", "/", b"all").read() == b"all"
        for client in clients:
            client.close()


@pytest.mark.parametrize("length", [10, LONG])
def test_a_body_that_does_not_arrive_is_an_error_of_reading(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_bridge, "_BODY_PATIENCE", 0.05)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            environ["wsgi.input"].read()
        except OSError:
            start_response("408 Request Timeout", [])
        return []

    with served(application) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\nhalf".encode())
        assert client.recv(12) == b"HTTP/1.1 408"


def without_its_body(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """An application whose request must not be whole."""
    with pytest.raises(OSError, match="did not arrive"):
        environ["wsgi.input"].read()
    start_response("408 Request Timeout", [])
    return []


def test_a_long_body_that_arrives_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_bridge, "_BODY_PATIENCE", 0.3)
    monkeypatch.setattr(wsgi_bridge, "_BYTES_IN_A_SECOND", 100 * LONG)

    with served(without_its_body) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LONG}\r\n\r\n".encode())
        client.settimeout(0.05)
        answer, sent = b"", 0
        while not answer and sent < LONG:
            client.sendall(b"x")
            sent += 1
            with suppress(TimeoutError):
                answer = client.recv(12)
    assert answer == b"HTTP/1.1 408"
    assert sent < 100


def test_clients_that_begin_a_long_body_take_no_turn_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_bridge, "_LONG_BODIES_AT_ONCE", 1)
    with served(Echo()) as port:
        clients = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(4)]
        for client in clients:
            client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGEST}\r\n\r\nx".encode())
        begun = time.monotonic()
        assert call(port, "POST", "/", b"x" * LONG).read() == b"x" * LONG
        assert time.monotonic() - begun < wsgi_bridge._BODY_PATIENCE / 2
        for client in clients:
            client.close()


def test_a_long_body_that_stops_is_given_up_long_before_the_time_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wsgi_bridge, "_BODY_PATIENCE", 0.3)

    with served(without_its_body) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGEST}\r\n\r\n".encode())
        client.sendall(b"x" * LONG)
        assert client.recv(12) == b"HTTP/1.1 408", "all of it would have a hundred seconds"


def test_the_largest_body_is_a_setting() -> None:
    body = b"x" * (LARGEST + 1)
    with served(Echo(), largest=len(body)) as port:
        assert call(port, "POST", "/", body).read() == body


def test_few_long_bodies_are_kept_at_a_time_and_the_others_wait_for_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wsgi_bridge, "_LONG_BODIES_AT_ONCE", 2)
    begun, goes_on = threading.Semaphore(0), threading.Event()

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read()
        if body:
            begun.release()
            goes_on.wait(10)
        start_response("200 OK", [])
        return [str(len(body)).encode()]

    with served(application, threads=8) as port, ThreadPoolExecutor(4) as clients:
        answers = [clients.submit(lambda: call(port, "POST", "/", b"x" * LONG).read()) for _ in range(4)]
        assert begun.acquire(timeout=10)
        assert begun.acquire(timeout=10)
        assert call(port, "GET", "/").read() == b"0"
        assert not begun.acquire(timeout=0.2)
        goes_on.set()
        assert [answer.result(10) for answer in answers] == [str(LONG).encode()] * 4


def test_a_whole_body_that_gets_no_turn_in_time_is_not_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_bridge, "_BODY_PATIENCE", 0.3)
    monkeypatch.setattr(wsgi_bridge, "_BYTES_IN_A_SECOND", LONG)

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            environ["wsgi.input"].read()
            start_response("200 OK", [])
        except OSError:
            start_response("503 Service Unavailable" if environ[NO_ROOM] else "408 Request Timeout", [])
        return []

    with served(application) as port:
        slow = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(8)]
        for client in slow:
            client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {LARGEST}\r\n\r\n".encode())
            client.sendall(b"x" * (4 * LONG))  # after these it may be silent for four seconds
        assert call(port, "GET", "/").status == 200
        assert call(port, "POST", "/", b"x" * LONG).status == 503
        for client in slow:
            client.close()
        assert call(port, "POST", "/", b"x" * LONG).status == 200


@pytest.mark.parametrize("length", [LARGEST + 1, None])
def test_a_body_over_the_limit_or_of_unknown_length_is_not_kept(length: int | None) -> None:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        with pytest.raises(OSError, match="did not arrive"):
            environ["wsgi.input"].read()
        start_response("413 Content Too Large", [])
        return []

    with served(application) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        client.sendall(f"POST / HTTP/1.1\r\nHost: a\r\n{framing}\r\n\r\n".encode())
        with suppress(ConnectionError):
            for _ in range(27 if length is None else 1):
                client.sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
        assert client.recv(12) == b"HTTP/1.1 413"


class Endless:
    """An answer without an end."""

    def __init__(self) -> None:
        self.is_closed = False

    def __call__(self, _environ: dict[str, Any], start_response: Callable[..., Any]) -> "Endless":
        start_response("200 OK", [])
        return self

    def __iter__(self) -> Iterator[bytes]:
        while True:
            yield b"x" * SHORT

    def close(self) -> None:
        self.is_closed = True


def test_nothing_more_is_made_for_a_client_that_has_gone() -> None:
    endless = Endless()
    with served(endless) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 200"
        wait_until(lambda: endless.is_closed, "its answer ends")


def test_a_client_that_takes_nothing_gives_its_thread_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wsgi_bridge, "_ANSWER_PATIENCE", 0.05)
    endless = Endless()
    with served(endless) as port, socket.create_connection(("127.0.0.1", port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        wait_until(lambda: endless.is_closed, "its answer ends")


def test_an_answer_that_breaks_off_is_not_taken_for_a_whole_one() -> None:
    def application(_environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [])
        yield b"x" * LONG
        raise RuntimeError("the clone is gone")

    with served(application) as port:
        answer = call(port, "GET", "/")
        with pytest.raises(http.client.IncompleteRead):
            answer.read()


class Batches(Echo):
    """Takes every POST; answers with how many came together."""

    def __init__(self) -> None:
        super().__init__()
        self.together = self
        self.batches: list[list[ShortRequest]] = []
        self.is_prepared_in = ""
        self.offered = 0
        self.afterwards: list[str] = []
        self.begin = threading.Event()
        self.begin.set()
        self.error: Exception | None = None

    def prepare(self) -> None:
        self.is_prepared_in = threading.current_thread().name

    def takes(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        self.offered += 1
        return method == "POST" and path.startswith("/short") and headers.get("host") is not None

    def answer_all(self, requests: Sequence[ShortRequest]) -> list[ShortAnswer]:
        self.batches.append(list(requests))
        self.begin.wait(10)
        if self.error:
            raise self.error
        if any(request.body == b"fails" for request in requests):
            raise RuntimeError("broken by one of them")
        answer = ShortAnswer(status=202, headers={"X-Together": str(len(requests))})
        return [replace(answer, then=lambda: self.afterwards.append("done")) for _ in requests]


def send_together(batches: Batches, port: int, bodies: Sequence[bytes]) -> list[int]:
    """The first alone, the others in one batch behind it; returns the statuses in their order."""
    batches.begin.clear()
    with ThreadPoolExecutor(len(bodies)) as threads:
        answers = [threads.submit(call, port, "POST", "/short", bodies[0])]
        wait_until(lambda: len(batches.batches) == 1, "the first is there")
        answers += [threads.submit(call, port, "POST", "/short", body) for body in bodies[1:]]
        wait_until(lambda: batches.offered == len(bodies), "all have come")
        batches.begin.set()
        return [answer.result(10).status for answer in answers]


def test_what_comes_while_a_batch_is_answered_is_the_next_one() -> None:
    batches = Batches()
    with served(batches) as port:
        assert send_together(batches, port, [b"body"] * 10) == [202] * 10
        wait_until(lambda: len(batches.afterwards) == 10, "all is done afterwards")
    assert [len(batch) for batch in batches.batches] == [1, 9]
    assert batches.batches[0][0].body == b"body"
    assert batches.is_prepared_in.startswith("together")


def test_the_connection_of_a_short_request_is_closed() -> None:
    with served(Batches()) as port:
        answer = call(port, "POST", "/short", b"")
        assert (answer.status, answer.getheader("X-Together"), answer.will_close) == (202, "1", True)


def test_what_is_left_to_be_done_is_done_also_if_the_client_has_gone() -> None:
    batches = Batches()
    batches.begin.clear()
    with served(batches) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"POST /short HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
            wait_until(lambda: len(batches.batches) == 1, "it is being answered")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        assert call(port, "POST", "/other").status == 201  # the server has noticed
        batches.begin.set()
        wait_until(lambda: batches.afterwards == ["done"], "it is done")


def test_what_the_batches_do_not_take_is_left_to_the_application() -> None:
    batches = Batches()
    with served(batches) as port:
        assert call(port, "POST", "/other").status == 201
        assert call(port, "POST", "/short", b"x" * (SHORT + 1)).status == 201
        assert call(port, "POST", "/short", X_Name="é".encode().decode("latin-1")).status == 201
        assert call(port, "POST", "/short", iter([b"chunked"])).status == 504, "it reads what it does not get"
        for target in ("/short?query", "/short%20"):
            assert call(port, "POST", target).status == 201
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            client.sendall(b"POST /short HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 1\r\nx-forwarded-for: 2\r\n\r\n")
            assert client.recv(12) == b"HTTP/1.1 201"
    assert batches.batches == []


def test_one_that_breaks_its_batch_fails_alone() -> None:
    batches = Batches()
    with served(batches) as port:
        assert send_together(batches, port, [b"body", b"body", b"fails", b"body"]) == [202, 202, 500, 202]
    assert [len(batch) for batch in batches.batches] == [1, 3, 1, 1, 1]


def test_a_batch_that_fails_does_not_stop_the_next() -> None:
    batches = Batches()
    with served(batches) as port:
        batches.error = RuntimeError("broken")
        assert call(port, "POST", "/short").status == 500
        batches.error = None
        assert call(port, "POST", "/short").status == 202
