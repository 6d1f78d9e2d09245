"""A real webhook receiver on 127.0.0.1 that believes nothing: it verifies, reassembles, compares and records.

    python -m docora.demo.receiver --port 9000

prints each event, for people who write a client. In tests and in the demo it runs in a thread of its own:
`with Receiver(webhook_key="…") as receiver:`.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from docora.demo.faults import Fault, Faults
from docora.demo.mirror import Mirror
from docora.demo.signatures import signature_problems

EVENTS = ("create", "update", "delete", "sync_failed", "sync_recovered", "sync_complete", "ping")


@dataclass(slots=True)
class ReceivedRequest:
    """One request as it came in; the status follows when it is answered, and stays None if it never is."""

    event: str
    headers: Mapping[str, str]
    body: bytes
    payload: dict[str, Any]
    at: float
    status: int | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        return str(self.section("file").get("path", ""))

    @property
    def commit_sha(self) -> str:
        return str(self.payload.get("commit_sha", ""))

    @property
    def repository_id(self) -> str:
        return str(self.section("repository").get("repository_id", ""))

    def section(self, name: str) -> dict[str, Any]:
        """An object inside the payload; empty where there is none, as in what is no webhook at all."""
        section = self.payload.get(name)
        return section if isinstance(section, dict) else {}


@dataclass(eq=False, kw_only=True)
class ReceiverFault(Fault):
    """How the receiver fails. `after_applying`: it takes the message in, but its answer says otherwise."""

    events: Collection[str] = EVENTS
    path: str | None = None
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay: float = 0
    hang: bool = False
    reset: bool = False
    after_applying: bool = False

    def concerns(self, request: ReceivedRequest) -> bool:
        return request.event in self.events and self.path in (None, request.path)

    @property
    def denies(self) -> bool:
        return self.reset or (self.status is not None and not 200 <= self.status < 300)


class Receiver:
    """Serves until the `with` block ends. What a client would hold is in `files`, every breach in `problems`.

    It fails on demand: `with receiver.faults.put(ReceiverFault(status=500, times=2)): ...`. Requests are
    in `requests` in the order in which their bodies were complete.
    """

    def __init__(self, *, webhook_key: str = "", app_id: str = "", port: int = 0, keep_bodies: bool = True) -> None:
        self.webhook_keys: tuple[str, ...] = (webhook_key,)
        self.app_id = app_id
        self.requests: list[ReceivedRequest] = []
        self.mirror = Mirror()
        self.faults: Faults[ReceiverFault] = Faults()
        self.read_bytes_per_second: int | None = None
        self.on_request: Callable[[ReceivedRequest], None] = lambda request: None
        self._keep_bodies = keep_bodies
        self._port = port
        self._changed = threading.Condition()

    @property
    def files(self) -> dict[str, dict[str, bytes]]:
        return self.mirror.files

    @property
    def problems(self) -> list[str]:
        return self.mirror.problems

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        ready: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="receiver")
        self._thread.start()
        self._port = ready.result(timeout=30)
        return self

    def __exit__(self, *_: object) -> None:
        self.faults.lift_all()
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def files_of(self, repository_id: str) -> dict[str, bytes]:
        """A copy of what the app has of a repository, taken between two requests."""
        with self._changed:
            return dict(self.files.get(repository_id, {}))

    def wait_until(self, condition: Callable[[], bool], *, seconds: float = 30) -> None:
        """Return as soon as the condition holds; it is asked after every request."""
        with self._changed:
            if not self._changed.wait_for(condition, timeout=seconds):
                raise TimeoutError(f"not within {seconds:g} s, {len(self.requests)} requests; {self.problems[:5]}")

    async def _serve(self, ready: "Future[int]") -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        runner = web.ServerRunner(web.Server(self._answer, access_log=None), shutdown_timeout=0.5)
        try:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", self._port).start()
            ready.set_result(runner.addresses[0][1])
            await self._over.wait()
        except OSError as error:
            ready.set_exception(error)
        finally:
            await runner.cleanup()

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        event = http.path.rpartition("/")[2]
        if http.method != "POST" or event not in EVENTS:
            self._complain(f"{http.method} {http.path} is not a webhook")
            return web.Response(status=404)
        request = self._record(event, http, await self._read(http))
        fault = self.faults.take(lambda fault: fault.concerns(request)) or ReceiverFault()
        if not fault.after_applying:
            await self._misbehave(fault, http)
        status = self._judge(request, fault)
        if fault.after_applying:
            await self._misbehave(fault, http)
        self._answered(request, status)
        return web.Response(status=status, headers=fault.headers)

    async def _read(self, http: web.BaseRequest) -> bytes:
        if http.headers.get("Expect", "").lower() == "100-continue" and http.transport:
            http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.read_bytes_per_second:
            return await http.content.read()
        body = bytearray()
        while piece := await http.content.read(max(1, self.read_bytes_per_second // 20)):
            body += piece
            await asyncio.sleep(len(piece) / self.read_bytes_per_second)
        return bytes(body)

    def _record(self, event: str, http: web.BaseRequest, body: bytes) -> ReceivedRequest:
        headers = {name.lower(): value for name, value in http.headers.items()}
        request = ReceivedRequest(event, headers, body, _parsed(body), time.time())
        request.problems += signature_problems(headers, body, self.webhook_keys)
        if self.app_id and headers.get("x-docora-app-id") != self.app_id:
            request.problems.append(f"X-Docora-App-Id is {headers.get('x-docora-app-id')!r}")
        with self._changed:
            self.requests.append(request)
        return request

    async def _misbehave(self, fault: ReceiverFault, http: web.BaseRequest) -> None:
        if fault.delay:
            await asyncio.sleep(fault.delay)
        while fault.hang and not fault.lifted.is_set():
            await asyncio.sleep(0.01)
        if fault.reset and http.transport:
            connection = http.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            http.transport.abort()

    def _judge(self, request: ReceivedRequest, fault: ReceiverFault) -> int:
        """Take the message in if it may be believed and no fault forbids it; returns the status to answer."""
        if request.problems:
            self._complain(*(f"{request.event} {request.path!r}: {problem}" for problem in request.problems))
            return 401
        if not fault.denies or fault.after_applying:
            self._apply(request, acknowledged=not fault.denies)
        return fault.status or 200

    def _apply(self, request: ReceivedRequest, *, acknowledged: bool) -> None:
        message_id = request.headers.get("webhook-id", "")
        with self._changed:
            try:
                self.mirror.apply(request.event, request.payload, message_id=message_id, acknowledged=acknowledged)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                self.problems.append(f"{request.event}: the payload is not as agreed: {error!r}")

    def _answered(self, request: ReceivedRequest, status: int) -> None:
        with self._changed:
            request.status = status
            if not self._keep_bodies:
                request.body = b""
                request.section("file").pop("content", None)
            self._changed.notify_all()
        self.on_request(request)

    def _complain(self, *problems: str) -> None:
        with self._changed:
            self.problems.extend(problems)


def _parsed(body: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        parsed = json.loads(body)
        if isinstance(parsed, dict):
            return parsed
    return {}


def describe(request: ReceivedRequest) -> str:
    """One line that a person can read."""
    repository, file = request.section("repository"), request.section("file")
    subject = f"{repository.get('owner')}/{repository.get('name')}"
    chunk = file.get("chunk")
    words = [
        f"{request.event:<11}",
        subject,
        file.get("path", request.section("error").get("message", "")),
        f"({file['size']} bytes)" if "size" in file else "",
        f"piece {chunk['index'] + 1} of {chunk['total']}" if chunk else "",
        f"at {request.commit_sha[:10]}" if request.commit_sha else "",
        f"answered {request.status}",
        *request.problems,
    ]
    return " ".join(word for word in words if word)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m docora.demo.receiver",
        description="Verify and print every webhook. The app's webhook key is read from the variable WEBHOOK_KEY.",
    )
    parser.add_argument("--port", type=int, default=9000, help="port on 127.0.0.1 (default 9000)")
    parser.add_argument("--webhook-key", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.webhook_key:
        print("Every user of this host sees a key that is an argument: set WEBHOOK_KEY instead.", file=sys.stderr)
    key = options.webhook_key or os.environ.get("WEBHOOK_KEY")
    if not key:
        parser.error("the webhook key is missing: set the variable WEBHOOK_KEY")
    over = _set_by_signals()
    receiver = Receiver(webhook_key=key, port=options.port, keep_bodies=False)
    receiver.on_request = lambda request: print(describe(request), flush=True)
    try:
        with receiver:
            print(f"Listening on {receiver.url}", flush=True)
            over.wait()
    except OSError as error:
        sys.exit(f"cannot listen on port {options.port}: {error.strerror}")


def _set_by_signals() -> threading.Event:
    """Set by Ctrl-C and by SIGTERM; a shell that starts this in the background has SIGINT ignored."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    return over


if __name__ == "__main__":
    main()
