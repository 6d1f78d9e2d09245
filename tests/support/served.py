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
    ports: list[int] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        runner = make()
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        ports.append(runner.addresses[0][1])
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="server")
    thread.start()
    assert ready.wait(10)
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
