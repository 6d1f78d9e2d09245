"""The webhook client: many requests at once to one app, every dialled address checked.

No thread of its own: requests move on while the caller waits in `answers`, and stand still while it reads git
or writes to the database. That is faster than two threads that fight for the interpreter, and simpler.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar
from urllib.parse import urlsplit

import aiohttp
from django.conf import settings

from repositories.base import outgoing
from snapshots.delivery.signing import Recipient, Signer
from snapshots.models import is_accepted

_KEPT = 2048
# An answer is read up to here, so that its connection can be used again. A longer one costs the connection.
_READ_OFF = 1 << 16
# The signature may be the reason; 400 may as well be about the message.
_SIGNATURE_REFUSED = {400, 401, 403}
_KEY_REFUSED = {401, 403}
_NOT_NOW = {408, 425, 429}
_HEADERS = {"User-Agent": "Docora", "Accept-Encoding": "identity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is told in one request. `id` is the same for every attempt. Without an event it goes to the base URL."""

    event: str
    id: str
    body: bytes


M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: a status, or the reason why there is none. `error_class` is for machines."""

    status: int | None
    error: str = ""
    error_class: str = ""
    milliseconds: int
    text: str = ""
    retry_after: float | None = None

    @property
    def accepted(self) -> bool:
        return is_accepted(self.status)

    @property
    def is_refusal(self) -> bool:
        """The endpoint works, and says no."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in _NOT_NOW

    @property
    def timed_out(self) -> bool:
        return self.error_class == "timeout"


class WebhookClient(Generic[M]):
    """Posts to one app; redirects are not followed, and proxies of the environment are ignored."""

    def __init__(self, app: Recipient, *, timeout: float) -> None:
        self._base_url = app.base_url
        self._timeout = timeout
        self._signer = Signer(app)
        self._lanes = app.max_in_flight
        self._loop = outgoing.PausingLoop()
        self._waiting: deque[M] = deque()
        self._answered: list[tuple[M, Answer]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake_below = 0
        self.unanswered = 0
        self.unanswered_bytes = 0

    def __enter__(self) -> Self:
        self._enough = asyncio.Event()
        self._session = self._loop.run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waiting.clear()
        self._loop.run(self._close())
        self._loop.close()

    def submit(self, message: M) -> None:
        self._waiting.append(message)
        self.unanswered += 1
        self.unanswered_bytes += len(message.body)

    def drop_waiting(self) -> None:
        """Forget what has not been sent yet."""
        while self._waiting:
            self._discount(self._waiting.popleft())

    def answers(self, *, down_to: int = 0, patience: float | None = None) -> list[tuple[M, Answer]]:
        """What was answered since last time, in that order.

        Works until at most so many requests are unanswered, one is not accepted, or patience is over.
        """
        if self.unanswered > down_to:
            self._wake_below = down_to
            self._loop.run(self._work(patience))
        answered, self._answered = self._answered, []
        return answered

    def post(self, message: M) -> Answer:
        """One message alone, to its answer."""
        self.submit(message)
        [(_, answer)] = self.answers()
        return answer

    async def _open(self) -> aiohttp.ClientSession:
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        return outgoing.open_session(
            self._base_url, ca_file=settings.CA_FILE, limit=self._lanes, timeout=timeout, headers=_HEADERS
        )

    async def _close(self) -> None:
        """Requests that are still under way are cut off: a run that ends early does not wait for a hanging receiver."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    async def _work(self, patience: float | None) -> None:
        self._enough.clear()
        for _ in range(min(len(self._waiting), self._lanes - len(self._tasks))):
            task = self._loop.create_task(self._lane())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait_for(self._enough.wait(), patience)
        except TimeoutError:
            return

    async def _lane(self) -> None:
        while self._waiting:
            message = self._waiting.popleft()
            answer = await self._tell(message)
            self._answered.append((message, answer))
            self._discount(message)
            if not answer.accepted:
                self._enough.set()  # the run looks at this answer before more is sent
                return

    def _discount(self, message: M) -> None:
        self.unanswered -= 1
        self.unanswered_bytes -= len(message.body)
        if self.unanswered <= self._wake_below:
            self._enough.set()

    async def _tell(self, message: M) -> Answer:
        first, *others = self._signer.alternatives
        answer = await self._post(message, first)
        for key in others:
            if answer.status not in _SIGNATURE_REFUSED:
                break
            other = await self._post(message, key)
            if other.accepted:
                self._signer.preferred = key
            if other.status not in _KEY_REFUSED:  # else the first answer may have been about the message
                answer = other
        return answer

    async def _post(self, message: M, key: int) -> Answer:
        started = self._loop.time()

        def took() -> int:
            return round((self._loop.time() - started) * 1000)

        try:
            headers = self._signer.headers(message.id, message.body, key=key)
            url = f"{self._base_url}/{message.event}" if message.event else self._base_url
            async with self._session.post(url, data=message.body, headers=headers, allow_redirects=False) as response:
                text = await _beginning(response.content)
                if is_accepted(response.status):
                    return Answer(status=response.status, milliseconds=took(), text=text)
                return Answer(
                    status=response.status,
                    error=_complaint(response),
                    error_class="status",
                    milliseconds=took(),
                    text=text,
                    retry_after=outgoing.seconds_of(response.headers.get("Retry-After", "")),
                )
        except TimeoutError:
            error = f"timed out after {self._timeout:g} s"
            return Answer(status=None, error=error, error_class="timeout", milliseconds=took())
        # A strange peer may provoke any error in the library: that is a failed delivery, not a crashed run.
        except Exception as error:
            reason, kind = outgoing.explain(error, urlsplit(self._base_url).netloc)
            return Answer(status=None, error=_clean(reason), error_class=kind, milliseconds=took())


async def _beginning(content: aiohttp.StreamReader) -> str:
    """The first 2 KB as text, never unpacked; a NUL is dropped because PostgreSQL cannot keep it."""
    kept, read = b"", 0
    while read < _READ_OFF and (piece := await content.read(_READ_OFF - read)):
        read += len(piece)
        kept += piece[: _KEPT - len(kept)]
    return kept.decode(errors="replace").replace("\0", "")


def _complaint(response: aiohttp.ClientResponse) -> str:
    hint = "; redirects are not followed" if 300 <= response.status < 400 else ""
    return _clean(f"{response.status} {response.reason}{hint}")


def _clean(text: str) -> str:
    """What every database keeps: no NUL, and no byte that was no UTF-8."""
    return text[:200].replace("\0", "").encode(errors="replace").decode()
