"""A receiver that costs next to nothing: it reads each request to its end and answers 204, after a delay if told.

    python -m benchmarks.fast_receiver DELAY_MS

prints the port that it listens on. Its own cost is part of every number measured against it.
"""

import asyncio
import socketserver
import sys
import time
from collections.abc import Callable

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class _Requests:
    """How many whole requests a stream of bytes has brought."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> int:
        self._held += data
        whole = 0
        while (end := self._end_of_request()) and len(self._held) >= end:
            self._held = self._held[end:]
            whole += 1
        return whole

    def _end_of_request(self) -> int:
        head, found, _ = self._held.partition(b"\r\n\r\n")
        if not found:
            return 0
        _, _, rest = head.lower().partition(b"content-length:")
        return len(head) + 4 + int(rest.partition(b"\r\n")[0])


class _AtOnce(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  for the type
        self._transport = transport
        self._requests = _Requests()

    def data_received(self, data: bytes) -> None:
        self._transport.write(_ANSWER * self._requests.feed(data))


async def _serve_at_once() -> None:
    server = await asyncio.get_running_loop().create_server(_AtOnce, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def _serve_after(delay: float) -> None:
    """A thread for each connection: it sleeps for as long as it is told, which an event loop rounds up."""
    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), _handler(delay))
    print(server.server_address[1], flush=True)
    server.serve_forever()


def _handler(delay: float) -> "Callable[..., socketserver.BaseRequestHandler]":
    class Slow(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests = _Requests()
            while data := self.request.recv(1 << 16):
                for _ in range(requests.feed(data)):
                    time.sleep(delay)
                    self.request.sendall(_ANSWER)

    return Slow


if __name__ == "__main__":
    milliseconds = float(sys.argv[1])
    if milliseconds:
        _serve_after(milliseconds / 1000)
    else:
        asyncio.run(_serve_at_once())
