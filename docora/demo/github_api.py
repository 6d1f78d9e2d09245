"""The part of GitHub's API that a GitHub App needs: installations, and tokens that the git host then accepts."""

import json
import re
import secrets
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

import jwt

if TYPE_CHECKING:
    from docora.demo.githost import GitHost, HostedRepository

_INSTALLATION = re.compile(r"/api/v3/repos/([^/]+)/([^/]+)/installation")
_INSTALLATION_BY_NUMBER = re.compile(r"/api/v3/repositories/(\d+)/installation")
_TOKENS = re.compile(r"/api/v3/app/installations/(\d+)/access_tokens")
_LONGEST_SIGNATURE = 600


@dataclass(eq=False, slots=True, kw_only=True)
class Installation:
    """Of the App at one owner: for all of the owner's repositories, or for those named."""

    id: int
    owner: str
    names: Collection[str] | None
    is_suspended: bool = False

    def covers(self, name: str) -> bool:
        return self.names is None or name.lower() in {each.lower() for each in self.names}


@dataclass(frozen=True, slots=True)
class _Issued:
    token: str
    repository: "HostedRepository"
    expires_at: float


class GitHubApi:
    """`GitHubApi(host, app_id=…, public_key=…)` answers below /api/v3 of the git host, by a clock of its own."""

    def __init__(self, host: "GitHost", *, app_id: str, public_key: str) -> None:
        self.clock_offset = 0.0
        self.lifetime = 3600.0
        self.requests: list[str] = []
        self.fails_with: int | None = None
        self._host = host
        self._app_id = app_id
        self._public_key = public_key
        self._installations: dict[str, Installation] = {}
        self._issued: list[_Issued] = []
        self._moved: list[tuple[str, str]] = []
        host.api = self

    @property
    def url(self) -> str:
        return f"http://{self._host.address}/api/v3"

    @property
    def tokens(self) -> list[str]:
        """Every token that was ever issued, the newest last."""
        return [issued.token for issued in self._issued]

    def install(self, owner: str, *, names: Collection[str] | None = None) -> Installation:
        installation = Installation(id=len(self._installations) + 1, owner=owner, names=names)
        self._installations[owner.lower()] = installation
        return installation

    def uninstall(self, owner: str) -> None:
        """The owner removes the App: its tokens end at once."""
        del self._installations[owner.lower()]
        self.withdraw_tokens()

    def suspend(self, owner: str, *, suspended: bool = True) -> None:
        self._installations[owner.lower()].is_suspended = suspended
        if suspended:
            self.withdraw_tokens()

    def move(self, path: str, to: str) -> None:
        """A repository has another name, or another owner, from now on; the old path leads to its number."""
        self._moved.append((path, to))

    def withdraw_tokens(self) -> None:
        """Before their end, as GitHub does when an installation changes."""
        for issued in self._issued:
            self._host.revoke(issued.repository, issued.token)
            self._host.expire_token(issued.token)

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        self.requests.append(f"{method} {path}")
        status, content = self._answer(method, path, authorization, body)
        headers = {"Content-Type": "application/json; charset=utf-8", "Date": formatdate(self._now(), usegmt=True)}
        if status == 301:
            headers["Location"] = content["url"]
        return status, headers, json.dumps(content).encode()

    def _answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.fails_with:
            return self.fails_with, {"message": "no"}
        if not self._is_signed(authorization.removeprefix("Bearer ")):
            return 401, {"message": "A JSON web token could not be decoded"}
        if found := _INSTALLATION.fullmatch(path):
            return self._find_or_lead_on(*found.groups())
        if found := _INSTALLATION_BY_NUMBER.fullmatch(path):
            return self._find(*self._moved[int(found[1])][1].split("/"))
        if (found := _TOKENS.fullmatch(path)) and method == "POST":
            return self._issue(int(found[1]), json.loads(body))
        return 404, {"message": "Not Found"}

    def _is_signed(self, token: str) -> bool:
        """As GitHub does: not from the future, not over, and for ten minutes at most."""
        try:
            claims = jwt.decode(
                token, self._public_key, algorithms=["RS256"], options={"verify_exp": False, "verify_iat": False}
            )
        except jwt.InvalidTokenError:
            return False
        now = self._now()
        is_now = claims["iat"] <= now < claims["exp"] <= now + _LONGEST_SIGNATURE
        return is_now and str(claims["iss"]) == self._app_id

    def _find_or_lead_on(self, owner: str, name: str) -> tuple[int, dict[str, Any]]:
        for number, (path, _) in enumerate(self._moved):
            if path == f"{owner}/{name}":
                return 301, {"url": f"{self.url}/repositories/{number}/installation"}
        return self._find(owner, name)

    def _find(self, owner: str, name: str) -> tuple[int, dict[str, Any]]:
        installation = self._installations.get(owner.lower())
        if installation is None or not installation.covers(name):
            return 404, {"message": "Not Found"}
        return 200, {"id": installation.id, "account": {"login": installation.owner}}

    def _issue(self, number: int, wanted: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        installation = next((each for each in self._installations.values() if each.id == number), None)
        if installation is None:
            return 404, {"message": "Not Found"}
        if installation.is_suspended:
            return 403, {"message": "This installation has been suspended"}
        [name] = wanted.get("repositories") or [self._moved[n][1].split("/")[1] for n in wanted["repository_ids"]]
        repository = self._host.find(f"{installation.owner}/{name}")
        if repository is None or not installation.covers(name) or wanted["permissions"] != {"contents": "read"}:
            return 422, {"message": "There is at least one repository that does not exist or is not accessible"}
        token, expires_at = f"ghs_{secrets.token_hex(18)}", self._now() + self.lifetime
        self._issued.append(_Issued(token, repository, expires_at))
        if repository.private_to is not None:
            self._host.grant(repository, token)
        ends = datetime.fromtimestamp(expires_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return 201, {"token": token, "expires_at": ends}

    def _now(self) -> float:
        return time.time() + self.clock_offset
