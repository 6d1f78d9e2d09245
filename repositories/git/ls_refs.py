"""Asks a git host for one tip over HTTP, in version 2 of git's protocol (ls-refs), without a git process.

Only one conclusion is ever drawn: the tip is the one that is known. A refusal, a redirect, an older protocol, and an
answer that is malformed or too slow are left to git, which finds out what is wrong and whose fault it is. No kernel
limit protects this process, so an answer is read up to 64 KiB, never unpacked, and for GIT_ASK_TIMEOUT at most.
"""

import asyncio
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp
from django.conf import settings

from repositories.base import outgoing
from repositories.git._environment import Remote
from repositories.git.refs import object_format
from repositories.git.urls import RemoteUrl

log = logging.getLogger("docora.looks")

_LONGEST_ANSWER = 1 << 16
# Seconds for which a host that spoke version 2 is assumed to speak it still.
_REMEMBERED = 600.0
# After a 429 that does not say for how long.
_USUAL_REST = 60.0
_HEADERS = {"User-Agent": "git/2 (Docora)", "Git-Protocol": "version=2", "Accept-Encoding": "identity"}
# Under this name, which no ref can have, `refs_in` keeps the ref that HEAD stands for.
_DEFAULT_BRANCH = "HEAD -> "
_SIZE = re.compile(rb"[0-9a-fA-F]{4}")
_REF = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([^\x00-\x20\x7f]+)((?: [a-z-]+:[^\x00-\x20\x7f]+)*)")


class NotUnderstood(Exception):
    """The answer does not prove that nothing has changed."""


class _RestWanted(Exception):
    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Neither unchanged nor changed: not understood. `rest`: seconds for which the host does not want to be asked."""

    is_unchanged: bool = False
    is_changed: bool = False
    rest: float = 0.0


class Host:
    """A git host that is asked many times: keeps connections to it, and remembers for a while that it speaks version 2.

    To be made inside of the event loop.
    """

    def __init__(self, url: RemoteUrl) -> None:
        self._session = outgoing.open_session(
            url.base, ca_file=settings.GIT_CA_FILE, timeout=aiohttp.ClientTimeout(), headers=_HEADERS
        )
        self._known_until = 0.0
        self._wants_object_format = False

    async def close(self) -> None:
        await self._session.close()

    async def ask(self, remote: Remote, ref: str, *, known: str, branch: str = "") -> Answer:
        """Whether the tip of ref (empty: the default branch, whose known name is `branch`) is still the known one."""
        try:
            async with asyncio.timeout(settings.GIT_ASK_TIMEOUT):
                refs = await self._list_refs(remote, ref, object_format(known))
        except _RestWanted as wanted:
            return Answer(rest=wanted.seconds)
        except Exception as error:  # a strange peer may provoke any error in the library
            # The error may quote the host, and the host may quote the request.
            log.debug("%s is left to git: %s %s", remote.url, type(error).__name__, remote.redact(str(error)[:1000]))
            return Answer()
        tip = tip_of(ref, refs)
        renamed = (
            not ref and bool(branch) and refs.get(_DEFAULT_BRANCH, f"refs/heads/{branch}") != f"refs/heads/{branch}"
        )
        return Answer(is_unchanged=tip == known and not renamed, is_changed=tip not in (known, None))

    async def _list_refs(self, remote: Remote, ref: str, object_format: str) -> dict[str, str]:
        clock = asyncio.get_running_loop()
        if clock.time() > self._known_until:
            formats = capabilities(await self._request("GET", remote, "info/refs?service=git-upload-pack"))
            self._wants_object_format = bool(formats)
            self._known_until = clock.time() + _REMEMBERED
            if object_format not in (formats or {"sha1"}):
                raise NotUnderstood("another object format")
        body = question(ref, object_format if self._wants_object_format else "")
        return refs_in(await self._request("POST", remote, "git-upload-pack", body))

    async def _request(
        self, method: str, remote: Remote, path: str, body: bytes | None = None, *, try_again: bool = True
    ) -> bytes:
        url, headers = f"{remote.url}/{path}", {"Authorization": remote.authorization} if remote.token else {}
        if body is not None:
            headers["Content-Type"] = "application/x-git-upload-pack-request"
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return await _read(response, "advertisement" if body is None else "result")
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            # The host may have closed a connection that was kept since the last question.
            if not try_again:
                raise
        return await self._request(method, remote, path, body, try_again=False)


async def _read(response: aiohttp.ClientResponse, kind: str) -> bytes:
    retry_after = outgoing.seconds_of(response.headers.get("Retry-After", ""))
    if retry_after or response.status == 429:
        raise _RestWanted(retry_after or _USUAL_REST)
    if response.status != 200 or response.content_type != f"application/x-git-upload-pack-{kind}":
        raise NotUnderstood(f"{response.status} {response.content_type}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise NotUnderstood("packed, although that was not asked for")
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > _LONGEST_ANSWER:
            raise NotUnderstood("too large")
    return bytes(body)


def question(ref: str, object_format: str) -> bytes:
    """The request for the refs that may be the tip. A host may answer with more: what is sent are prefixes."""
    names = [f"refs/heads/{ref}", f"refs/tags/{ref}"] if ref else ["HEAD"]
    command = ["command=ls-refs\n", *([f"object-format={object_format}"] if object_format else [])]
    options = ["peel\n", "symrefs\n", *(f"ref-prefix {name}\n" for name in names)]
    return _packed(command) + b"0001" + _packed(options) + b"0000"


def capabilities(advertisement: bytes) -> set[str]:
    """The object formats that the host names; it speaks version 2 and has ls-refs."""
    packets = list(_packets(advertisement))
    if packets[:2] == [b"# service=git-upload-pack", None]:
        del packets[:2]
    lines = [line.decode().partition("=") for line in _up_to_flush(packets)]
    if not lines or lines[0][0] != "version 2" or "ls-refs" not in {name for name, _, _ in lines}:
        raise NotUnderstood("not version 2 with ls-refs")
    return {value for name, _, value in lines if name == "object-format"}


def refs_in(result: bytes) -> dict[str, str]:
    """What each ref names; under `name^{}` what an annotated tag stands for."""
    refs: dict[str, str] = {}
    for line in _up_to_flush(list(_packets(result))):
        found = _REF.fullmatch(line)
        if not found:
            raise NotUnderstood("not a ref")
        sha, name, attributes = (part.decode(errors="surrogateescape") for part in found.groups())
        if refs.setdefault(name, sha) != sha:
            raise NotUnderstood("two tips of one ref")
        for attribute in attributes.split():
            key, _, value = attribute.partition(":")
            if key == "peeled":
                refs[f"{name}^{{}}"] = value
            elif key == "symref-target" and name == "HEAD":
                refs[_DEFAULT_BRANCH] = value
    return refs


def tip_of(ref: str, refs: dict[str, str]) -> str | None:
    """The ref of exactly this name; as git chooses, a branch before a tag."""
    if not ref:
        return refs.get("HEAD")
    tag = f"refs/tags/{ref}"
    return refs.get(f"refs/heads/{ref}") or refs.get(f"{tag}^{{}}") or refs.get(tag)


def _packed(lines: list[str]) -> bytes:
    return b"".join(b"%04x%s" % (len(line.encode()) + 4, line.encode()) for line in lines)


def _packets(body: bytes) -> Iterator[bytes | None]:
    """Each line without its newline; None stands for a flush."""
    at = 0
    while at < len(body):
        if not _SIZE.fullmatch(body, at, at + 4):
            raise NotUnderstood("not in git's framing")
        size = int(body[at : at + 4], 16)
        if 0 < size <= 4 or at + size > len(body):
            raise NotUnderstood("a packet that is cut off or means something else")
        yield body[at + 4 : at + size].removesuffix(b"\n") if size else None
        at += size or 4


def _up_to_flush(packets: list[bytes | None]) -> list[bytes]:
    """The lines of a list that ends where it should."""
    lines = [packet for packet in packets if packet is not None]
    if packets != [*lines, None]:
        raise NotUnderstood("no end where one should be")
    return lines
