"""The two questions to GitHub's API: which installation serves a repository, and a token of it."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
from django.conf import settings

from repositories.base import outgoing
from repositories.errors import HostUnavailable

# Where the installation of a repository is asked for by its number, which a rename does not change.
_BY_NUMBER = re.compile(r"/repositories/(\d+)/installation")
_LONGEST_ANSWER = 1 << 18
# GitHub accepts ten minutes; a minute each way is left for clocks that differ.
_SIGNED_FOR = 480
_CLOCKS_DIFFER_BY = 60
_HEADERS = {
    "Accept": "application/vnd.github+json",
    "User-Agent": "Docora",
    "X-GitHub-Api-Version": "2022-11-28",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A new token, and how long it is valid by GitHub's own clock."""

    token: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    path: str
    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def now(self) -> float | None:
        """GitHub's clock."""
        try:
            return parsedate_to_datetime(self.headers.get("Date", "")).timestamp()
        except ValueError:
            return None

    @property
    def owner(self) -> str:
        """Of an installation: the account that it is at."""
        account = self.body.get("account")
        return str(account.get("login")) if isinstance(account, dict) else ""

    @property
    def is_throttled(self) -> bool:
        spent = self.headers.get("X-RateLimit-Remaining") == "0" or "Retry-After" in self.headers
        return self.status == HTTPStatus.TOO_MANY_REQUESTS or (self.status == HTTPStatus.FORBIDDEN and spent)

    @property
    def moved_to(self) -> str:
        """Where a repository is that was renamed: a path of the same API. Nothing else is followed."""
        base, location = f"{settings.GITHUB_APP_API_URL}/", self.headers.get("Location", "")
        has_moved = self.status in {301, 302, 307, 308} and location.startswith(base)
        return location.removeprefix(settings.GITHUB_APP_API_URL) if has_moved else ""


def git_address() -> str:
    """The host of the repositories: api.github.com answers for github.com, an Enterprise server for itself."""
    return urlsplit(settings.GITHUB_APP_API_URL).netloc.removeprefix("api.")


def make_token(owner: str, name: str) -> Made | None:
    """A token that reads the contents of this repository alone; None if the GitHub App is not installed there."""
    found = _ask("GET", f"/repos/{quote(owner, safe='')}/{quote(name, safe='')}/installation")
    # One that has moved to another owner is not what the operator has granted, although the GitHub App may read it.
    if not found or found.owner.lower() != owner.lower():
        return None
    moved = _BY_NUMBER.fullmatch(found.path)
    one = {"repository_ids": [int(moved[1])]} if moved else {"repositories": [name]}
    wanted = {**one, "permissions": {"contents": "read"}}
    made = _ask("POST", f"/app/installations/{int(found.body['id'])}/access_tokens", wanted)
    if not made:
        return None
    ends_at = datetime.fromisoformat(made.body["expires_at"]).timestamp()
    return Made(token=str(made.body["token"]), seconds=ends_at - (made.now or time.time()))


def _ask(method: str, path: str, body: object = None) -> _Answer | None:
    """None where GitHub says that this may not be: not installed, suspended, or without this repository."""
    answer = _call(method, path, body, now=time.time())
    if answer.status == HTTPStatus.UNAUTHORIZED and answer.now:
        # A signature from the future or the past is refused: sign again by GitHub's clock.
        answer = _call(method, path, body, now=answer.now)
    if answer.moved_to and method == "GET":
        answer = _call(method, answer.moved_to, body, now=answer.now or time.time())
    if answer.status in {HTTPStatus.OK, HTTPStatus.CREATED} and isinstance(answer.body, dict):
        return answer
    if answer.status in {403, 404, 422} and not answer.is_throttled:
        return None
    raise HostUnavailable(f"The API of the GitHub App answered {answer.status}.")


def _call(method: str, path: str, body: object, *, now: float) -> _Answer:
    try:
        with asyncio.Runner() as runner:
            return runner.run(_send(method, path, body, _signed(now)))
    except TimeoutError:
        raise HostUnavailable(
            f"The API of the GitHub App cannot be reached: timed out after {settings.GIT_ASK_TIMEOUT:g} s."
        ) from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        reason = outgoing.explain(error, urlsplit(settings.GITHUB_APP_API_URL).netloc, may_quote=False)
        raise HostUnavailable(f"The API of the GitHub App cannot be reached: {reason}.") from None


async def _send(method: str, path: str, body: object, signed: str) -> _Answer:
    url = settings.GITHUB_APP_API_URL + path
    timeout = aiohttp.ClientTimeout(total=settings.GIT_ASK_TIMEOUT)
    headers = {**_HEADERS, "Authorization": f"Bearer {signed}"}
    async with (
        outgoing.open_session(url, ca_file=settings.GIT_CA_FILE, timeout=timeout, auto_decompress=True) as session,
        session.request(method, url, json=body, headers=headers, allow_redirects=False) as response,
    ):
        text = b""
        async for piece in response.content.iter_any():
            text += piece
            if len(text) > _LONGEST_ANSWER:
                raise ValueError("its answer is too long")
        is_json = response.content_type == "application/json"
        parsed = json.loads(text) if is_json and text else None
        return _Answer(path=path, status=response.status, headers=response.headers, body=parsed)


def _signed(now: float) -> str:
    import jwt  # here: it would take 3 MB in every process, also where there is no GitHub App

    claims = {"iat": int(now) - _CLOCKS_DIFFER_BY, "exp": int(now) + _SIGNED_FOR, "iss": settings.GITHUB_APP_ID}
    return jwt.encode(claims, settings.GITHUB_APP_PRIVATE_KEY, algorithm="RS256")
