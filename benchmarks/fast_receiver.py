"""A receiver that costs next to nothing: it reads each request to its end and answers 204, after a delay if told.

    python -m benchmarks.fast_receiver DELAY_MS

prints the port that it listens on. Its own cost is part of every number measured against it.
"""

import asyncio
import sys

_ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class _Connection(asyncio.Protocol):
    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._held = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  for the type
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while (end := self._end_of_request()) and len(self._held) >= end:
            self._held = self._held[end:]
            if self._delay:
                asyncio.get_running_loop().call_later(self._delay, self._transport.write, _ANSWER)
            else:
                self._transport.write(_ANSWER)

    def _end_of_request(self) -> int:
        head, found, _ = self._held.partition(b"\r\n\r\n")
        if not found:
            return 0
        _, _, rest = head.lower().partition(b"content-length:")
        return len(head) + 4 + int(rest.partition(b"\r\n")[0])


async def _serve(delay: float) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(delay), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]) / 1000))
