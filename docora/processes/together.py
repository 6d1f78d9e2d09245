"""Short requests that come at the same time are answered at the same time, in one thread.

A burst of hooks is hundreds in a second. With a thread for each, most of the time went into handing the interpreter
from one to the other. Here the first one is answered at once, and those that come meanwhile are the next batch: the
more there are, the less each costs.
"""

import asyncio
import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

from aiohttp import web

from docora.short_requests import Answerer, ShortAnswer, ShortRequest

log = logging.getLogger("docora.web")

# The first of a batch waits for the last of it.
_LARGEST_BATCH = 50


class Together:
    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="together")
        self._thread.submit(answerer.prepare).add_done_callback(_log_failure)
        # What is left to be done after an answer does not hold up the next ones.
        self._afterwards = ThreadPoolExecutor(1, thread_name_prefix="afterwards")
        self._waiting: list[tuple[ShortRequest, asyncio.Future[ShortAnswer]]] = []
        self._batches: asyncio.Task[None] | None = None

    def takes(self, request: web.Request) -> bool:
        return _is_plain(request) and self._answerer.takes(request.method, request.raw_path, request.headers)

    async def answer(self, request: web.Request, body: bytes) -> web.Response:
        short = ShortRequest(
            path=request.raw_path,
            headers=request.headers,
            body=body,
            remote_address=request.remote or "",
            arrived=time.monotonic(),
        )
        answer = await self._in_next_batch(short)
        response = web.Response(status=answer.status, headers=answer.headers, body=answer.body)
        # A git host sends one on each connection. The end of one that is kept would have to be noticed too.
        response.force_close()
        try:
            await response.prepare(request)
            await response.write_eof()
        finally:  # also if the client has not waited for its answer
            if answer.then:
                self._afterwards.submit(answer.then).add_done_callback(_log_failure)
        return response

    def close(self) -> None:
        """Wait for what is under way."""
        self._thread.shutdown()
        self._afterwards.shutdown()

    async def _in_next_batch(self, request: ShortRequest) -> ShortAnswer:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ShortAnswer] = loop.create_future()
        self._waiting.append((request, answer))
        if self._batches is None:
            self._batches = loop.create_task(self._answer_waiting())
        return await answer

    async def _answer_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_LARGEST_BATCH], self._waiting[_LARGEST_BATCH:]
            await self._answer_batch([request for request, _ in batch], [answer for _, answer in batch])
        self._batches = None

    async def _answer_batch(self, requests: list[ShortRequest], waiting: "list[asyncio.Future[ShortAnswer]]") -> None:
        loop = asyncio.get_running_loop()
        try:
            answers = await loop.run_in_executor(self._thread, self._answerer.answer_all, requests)
            answered = list(zip(waiting, answers, strict=True))
        except Exception as error:
            if len(requests) > 1:  # one of them may be the reason: it alone fails
                for request, answer in zip(requests, waiting, strict=True):
                    await self._answer_batch([request], [answer])
            elif not waiting[0].done():
                waiting[0].set_exception(error)
        else:
            for answer, found in answered:
                if not answer.done():  # it is if its request was cancelled, because the process ends
                    answer.set_result(found)


def _is_plain(request: web.Request) -> bool:
    """Nothing in it that servers understand in more than one way: encoded characters, or a header that comes twice."""
    headers = request.headers
    return (
        not {"?", "%"}.intersection(request.raw_path)
        and all(map(str.isascii, headers.values()))
        and len({name.lower() for name in headers}) == len(headers)
    )


def _log_failure(work: "Future[None]") -> None:
    if error := work.exception():
        log.error("Work around short requests failed.", exc_info=error)
