"""The webhook client: many requests at once from one thread, every dialled address checked.

The caller stays in its own thread, with the database and git; only HTTP happens in the loop's thread.
"""

import asyncio
import socket
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Self

import aiohttp
from django.utils import timezone

from repositories import network
from repositories.errors import ForbiddenAddress

_KEPT = 2048
_USER_AGENT = "Docora"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: a status, or the reason why there is none."""

    status: int | None
    error: str = ""
    milliseconds: int
    text: str = ""
    retry_after: float | None = None

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


class WebhookClient:
    """Posts to one base URL; redirects are not followed, and proxies of the environment are ignored."""

    def __init__(self, base_url: str, *, timeout: float, lanes: int = 1) -> None:
        self._base_url = base_url
        self._timeout = timeout
        self._lanes = lanes
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="webhooks", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._session = asyncio.run_coroutine_threadsafe(self._open(), self._loop).result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    def post(self, event: str, body: bytes, headers: dict[str, str]) -> "Future[Answer]":
        return asyncio.run_coroutine_threadsafe(self._post(event, body, headers), self._loop)

    async def _open(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._lanes, socket_factory=self._checked_socket),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers={"User-Agent": _USER_AGENT},
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def _close(self) -> None:
        """Requests that are still under way are cut off: who leaves early does not wait for a hanging receiver."""
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._session.close()

    def _checked_socket(self, info: tuple[Any, ...]) -> socket.socket:
        """Judges the address that is about to be dialled, so a name that changes its mind gains nothing."""
        family, kind, protocol, _, address = info
        network.check_address(address[0], plain=self._base_url.startswith("http:"))
        return socket.socket(family, kind, protocol)

    async def _post(self, event: str, body: bytes, headers: dict[str, str]) -> Answer:
        started = time.monotonic()

        def took() -> int:
            return round((time.monotonic() - started) * 1000)

        try:
            async with self._session.post(
                f"{self._base_url}/{event}", data=body, headers=headers, allow_redirects=False
            ) as response:
                text = (await response.content.read(_KEPT)).decode(errors="replace").replace("\0", "")
                return Answer(
                    status=response.status,
                    error="" if response.ok else f"{response.status} {response.reason}"[:200],
                    milliseconds=took(),
                    text=text,
                    retry_after=_seconds(response.headers.get("Retry-After", "")),
                )
        except TimeoutError:
            return Answer(status=None, error=f"no answer within {self._timeout:g} s", milliseconds=took())
        except (aiohttp.ClientError, ForbiddenAddress, OSError, ValueError) as error:
            return Answer(status=None, error=_reason(error), milliseconds=took())


def _reason(error: Exception) -> str:
    forbidden = error if isinstance(error, ForbiddenAddress) else error.__cause__
    return str(forbidden if isinstance(forbidden, ForbiddenAddress) else f"{type(error).__name__}: {error}")[:200]


def _seconds(retry_after: str) -> float | None:
    """Retry-After is a number of seconds or a date."""
    if retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, (parsedate_to_datetime(retry_after) - timezone.now()).total_seconds())
    except (ValueError, TypeError):
        return None
