"""An HTTP server of aiohttp in a thread of its own: it answers while the test, in its thread, asks."""

import asyncio
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aiohttp import web


@contextmanager
def served(make: Callable[[], web.BaseRunner], *, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of what `make`, which is called in the server's event loop, returns."""
    ready, stop = threading.Event(), asyncio.Event()
    found: list[tuple[asyncio.AbstractEventLoop, int]] = []

    async def serve() -> None:
        runner = make()
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        found.append((asyncio.get_running_loop(), runner.addresses[0][1]))
        ready.set()
        await stop.wait()
        await runner.cleanup()

    # `run` also ends what clients have left under way.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="server")
    thread.start()
    assert ready.wait(10)
    [(loop, port)] = found
    try:
        yield port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
