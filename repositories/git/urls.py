"""Which repository a URL names: one parser, one normal form, one clone key."""

import hashlib
import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, urlsplit

from django.conf import settings

from repositories.errors import InvalidUrl

_GITHUB_OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,98}")
_GITHUB_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
# What `clone_key` can give, and nothing that leads out of the folder of the clones.
_CLONE_KEY = re.compile(r"(?:[a-z0-9][a-z0-9_-]*|@[^/\0]+)/(?!\.\.?$)[A-Za-z0-9._~%-]{1,200}")
_USUAL_PORT = {"https": 443, "http": 80}
_LONGEST_SEGMENT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUrl:
    """A git URL in its normal form: no credentials, no `.git`, no trailing slash, host in lower case."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> Self:
        text = text.strip()
        if not text or any(ord(character) <= 32 or ord(character) == 127 for character in text):
            raise InvalidUrl("The URL is empty or contains spaces or control characters.")
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:
            raise InvalidUrl("The URL is malformed.") from None
        if parts.scheme not in _USUAL_PORT or not parts.hostname:
            raise InvalidUrl("The URL must look like https://host/owner/name.")
        if "@" in parts.netloc:
            raise InvalidUrl("The URL must not contain credentials; send the token separately.")
        if parts.query or parts.fragment:
            raise InvalidUrl("The URL must not have a query or a fragment.")
        host = "github.com" if parts.hostname == "www.github.com" else parts.hostname
        remote = cls(
            scheme=parts.scheme,
            host=host,
            port=port or _USUAL_PORT[parts.scheme],
            path=parts.path.strip("/").removesuffix(".git").rstrip("/"),
        )
        remote._check()
        return remote

    def _check(self) -> None:
        if self.address not in settings.GIT_HOSTS:
            allowed = ", ".join(settings.GIT_HOSTS)
            raise InvalidUrl(f"The host {self.address} is not allowed here; DOCORA_GIT_HOSTS allows {allowed}.")
        segments = self.path.split("/")
        if any(segment in {"", ".", ".."} or segment.startswith("-") for segment in segments):
            raise InvalidUrl("The path of the URL does not name a repository.")
        if self.is_github and not (
            len(segments) == 2 and _GITHUB_OWNER.fullmatch(segments[0]) and _GITHUB_NAME.fullmatch(segments[1])
        ):
            raise InvalidUrl("A GitHub URL must look like https://github.com/owner/name.")

    @property
    def is_github(self) -> bool:
        return self.host == "github.com"

    @property
    def address(self) -> str:
        """host, with the port where it is not the usual one."""
        return self.host if self.port == _USUAL_PORT[self.scheme] else f"{self.host}:{self.port}"

    @property
    def base(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == _USUAL_PORT[self.scheme] else f":{self.port}")

    def __str__(self) -> str:
        return f"{self.base}/{self.path}"

    @property
    def owner(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def clone_key(self) -> str:
        """The clone's path below the repos root, and the name of its lock.

        GitHub does not tell upper from lower case. On other hosts the whole path is one segment,
        so that no clone can lie inside another one, and `@` keeps them apart from GitHub's owners.
        """
        if self.is_github:
            return self.path.lower()
        segment = quote(self.path, safe="")
        if len(segment) > _LONGEST_SEGMENT:
            # `%~` is in no quoted path, so no other path has such a key.
            segment = segment[: _LONGEST_SEGMENT - 66] + "%~" + hashlib.sha256(self.path.encode()).hexdigest()
        scheme = "" if self.scheme == "https" else f"{self.scheme}+"
        return f"@{scheme}{self.host}+{self.port}/{segment}"


def is_clone_key(text: str) -> bool:
    return _CLONE_KEY.fullmatch(text) is not None
