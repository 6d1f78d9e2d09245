"""Django's answers to requests that an event loop reads.

A request takes a thread only when its body is there, and gives it back as soon as a short answer is made: clients that
are slow or silent hold none. Only a long answer passes through its thread piece by piece. A long body goes through a
file, and few of them are taken at a time: those whose beginning is there and which go on arriving.

Requests that the application can answer together do not take a thread each (`together`).
"""

import asyncio
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import IO, Any
from urllib.parse import unquote_to_bytes, urlsplit

from aiohttp import hdrs, web
from multidict import CIMultiDict

from docora.processes.together import Together
from docora.short_requests import LARGEST, NO_ROOM, SHORT

# Seconds for a body; a long one has one more for each so many bytes that have arrived.
_BODY_PATIENCE = 10.0
_BYTES_IN_A_SECOND = 256 << 10
# The others wait for their turn in the event loop, without a thread. An answer may need its body as a whole in memory.
_LONG_BODIES_AT_ONCE = 8
# Seconds that a client may take to make room for the next piece of a long answer.
_ANSWER_PATIENCE = 60.0

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Bridge:
    def __init__(self, application: Application, *, threads: int, largest: int = LARGEST) -> None:
        """A body that is larger than `largest` is not read at all."""
        self._application = application
        self._largest = largest
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="request")
        answerer = getattr(application, "together", None)
        self._together = Together(answerer) if answerer else None
        self._long_bodies = asyncio.Semaphore(_LONG_BODIES_AT_ONCE)

    def front(self) -> web.Application:
        """Every request comes here. As a middleware, because the patterns of aiohttp's routes do not fit every path: a
        name in git may hold a line break."""

        @web.middleware
        async def answer(request: web.Request, handler: object) -> web.StreamResponse:
            return await self.answer(request)

        front = web.Application(middlewares=[answer])
        # For a path without a route, aiohttp would make a whole answer that says so before it calls the middleware.
        front.router.add_route("*", "/{path:.*}", self.answer)
        front.on_cleanup.append(self.close)
        return front

    async def answer(self, request: web.Request) -> web.StreamResponse:
        length = request.content_length or 0
        is_unread = length > self._largest or (request.can_read_body and request.content_length is None)
        # The application refuses by its headers what is too long, or does not say how long it is.
        begun = None if is_unread else await _beginning(request)
        if begun is None:
            return await self._in_thread(request, _missing_body())
        if length > SHORT:
            return await self._answer_long(request, begun, length)
        if self._together and self._together.takes(request):
            return await self._together.answer(request, begun)
        return await self._in_thread(request, io.BytesIO(begun))

    async def _answer_long(self, request: web.Request, begun: bytes, length: int) -> web.StreamResponse:
        patience = _BODY_PATIENCE + length / _BYTES_IN_A_SECOND
        try:
            await asyncio.wait_for(self._long_bodies.acquire(), patience)
        except TimeoutError:
            return await self._in_thread(request, _missing_body(), has_room=False)
        try:
            with tempfile.SpooledTemporaryFile(SHORT) as file:
                file.write(begun)
                is_there = await _keep(request, file)
                file.seek(0)
                return await self._in_thread(request, file if is_there else _missing_body())
        finally:
            self._long_bodies.release()

    async def _in_thread(self, request: web.Request, body: IO[bytes], *, has_room: bool = True) -> web.StreamResponse:
        environ = _environ(request)
        environ["wsgi.input"], environ[NO_ROOM] = body, not has_room
        loop = asyncio.get_running_loop()
        exchange = _Exchange(request, loop)
        return await loop.run_in_executor(self._threads, exchange.run, self._application, environ)

    async def close(self, _front: web.Application) -> None:
        """Wait for what is under way, and for what is done after an answer."""
        await asyncio.to_thread(self._threads.shutdown)
        if self._together:
            await asyncio.to_thread(self._together.close)


def _environ(request: web.Request) -> dict[str, Any]:
    """As PEP 3333 asks for it: every text holds the bytes that came, one character for each."""
    target = urlsplit(request.raw_path) if not request.raw_path.startswith("/") else None
    path, _, query = (f"{target.path}?{target.query}" if target else request.raw_path).partition("?")
    host, port = (request.get_extra_info("sockname") or ("", ""))[:2]
    environ = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_PROTOCOL": f"HTTP/{request.version.major}.{request.version.minor}",
        "REMOTE_ADDR": request.remote or "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        # X_Forwarded_For would look like X-Forwarded-For, which a proxy in front of us has checked.
        if "_" in name:
            continue
        key = name.upper().replace("-", "_")
        key = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"
        text = value.encode(errors="surrogateescape").decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ


async def _beginning(request: web.Request) -> bytes | None:
    """A short body, or as much of a long one; None if that does not arrive in time."""
    begun = bytearray()
    try:
        async with asyncio.timeout(_BODY_PATIENCE):
            while len(begun) < SHORT and (piece := await request.content.readany()):
                begun += piece
    except TimeoutError:
        return None
    return bytes(begun)


async def _keep(request: web.Request, file: IO[bytes]) -> bool:
    """Write the rest to the file. False if it arrives more slowly than it may."""
    begun_at = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(_BODY_PATIENCE) as limit:
            async for piece in request.content.iter_any():
                file.write(piece)
                limit.reschedule(begun_at + _BODY_PATIENCE + file.tell() / _BYTES_IN_A_SECOND)
    except TimeoutError:
        return False
    return True


def _missing_body() -> IO[bytes]:
    return io.BufferedReader(_MissingBody())


class _MissingBody(io.RawIOBase):
    """A body that did not arrive in time: reading it fails like reading from a broken connection."""

    def readable(self) -> bool:
        return True

    def readinto(self, _buffer: Any) -> int:
        raise TimeoutError("The body did not arrive.")


class _Exchange:
    """One request and its answer, in a thread."""

    def __init__(self, request: web.Request, loop: asyncio.AbstractEventLoop) -> None:
        self._request, self._loop = request, loop
        self._status = 500
        self._headers: CIMultiDict[str] = CIMultiDict()

    def run(self, application: Application, environ: dict[str, Any]) -> web.StreamResponse:
        answer = application(environ, self._start)
        try:
            pieces = iter(answer)
            begun, is_all = _take(pieces)
            if is_all:
                return web.Response(status=self._status, headers=self._headers, body=begun)
            response = web.StreamResponse(status=self._status, headers=self._headers)
            if self._request.method != hdrs.METH_HEAD:
                self._stream(response, begun, pieces)
            return response
        finally:
            if close := getattr(answer, "close", None):
                close()

    def _start(
        self,
        status: str,
        headers: list[tuple[str, str]],
        _error: tuple[type[BaseException], BaseException, TracebackType] | None = None,
    ) -> None:
        self._status = int(status.partition(" ")[0])
        # Django's cookies begin with a space.
        self._headers = CIMultiDict((name, value.strip()) for name, value in headers)

    def _stream(self, response: web.StreamResponse, begun: bytes, pieces: Iterator[bytes]) -> None:
        """Raises if the client is gone, or takes nothing any more: then nothing more is read for it."""
        self._in_loop(response.prepare(self._request))
        self._in_loop(response.write(begun))
        for piece in pieces:
            self._in_loop(response.write(piece))

    def _in_loop(self, step: Any) -> None:
        try:
            asyncio.run_coroutine_threadsafe(asyncio.wait_for(step, _ANSWER_PATIENCE), self._loop).result()
        except TimeoutError:
            raise ConnectionAbortedError("The client takes nothing.") from None


def _take(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """The beginning, and whether it is all."""
    begun = bytearray()
    for piece in pieces:
        begun += piece
        if len(begun) > SHORT:
            return bytes(begun), False
    return bytes(begun), True
