"""The bodies of the webhooks, byte for byte as a JavaScript receiver prints them again.

Receivers verify the signature over `JSON.stringify(parsed)`, so a body has no spaces, keeps its key order
and does not escape what JSON.stringify would not.
"""

import base64
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from django.conf import settings
from django.utils import timezone

from repositories.models import Repository
from snapshots.changes import Change, Event
from snapshots.models import Snapshot
from snapshots.paths import GitPath


def iso(moment: datetime) -> str:
    """A time in UTC, as JavaScript prints it."""
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def serialise(payload: dict[str, Any]) -> bytes:
    """The bytes that JSON.stringify prints: no spaces, keys in their order, only control characters escaped."""
    return orjson.dumps(payload)


def describe(repository: Repository) -> dict[str, str]:
    return {
        "repository_id": repository.public_id,
        "github_url": repository.url,
        "owner": repository.owner,
        "name": repository.name,
    }


def origin(branch: str, noticed: datetime | None) -> dict[str, str | None]:
    """The end of every payload about a repository. Receivers rely on the order of the keys before it."""
    return {"ref_name": branch or None, "noticed_at": iso(noticed) if noticed else None}


def noticed_at(snapshot: Snapshot) -> datetime:
    """Old snapshots have no such time; theirs is when they were taken."""
    return snapshot.noticed_at or snapshot.taken_at


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes, and what is in them that only this attempt has: its time and, of a piece, the id of the transfer."""

    content: bytes
    at: datetime
    transfer: str


class Bodies:
    """The bodies that tell one app about changes at one commit."""

    def __init__(
        self, repository: Repository, snapshot: Snapshot, *, at: datetime | None = None, transfer: str = ""
    ) -> None:
        """`at` and `transfer` stand for an attempt in the past: its time, and the id of its pieces."""
        self._repository = describe(repository)
        self._commit_sha = snapshot.commit_sha
        self._origin = origin(snapshot.branch, noticed_at(snapshot))
        self._at = at
        self._transfer = transfer

    def of(self, change: Change, content: Iterable[bytes]) -> Iterator[Body]:
        """One body, or several for a file that goes in pieces.

        Text as it is; anything else as base64, in pieces where it is large. Very large text too goes in
        pieces, so that no request is unbounded, and its content is never in memory as a whole.
        """
        if change.event is Event.DELETE:
            yield self._body(change, {**_named(change.path), "sha": change.sha256.hex()})
        elif change.size > settings.TEXT_CHUNK_THRESHOLD_BYTES:
            yield from self._pieces(change, content)
        else:
            yield from self._whole(change, b"".join(content))

    def _whole(self, change: Change, content: bytes) -> Iterator[Body]:
        text = _as_text(content)
        if text is not None:
            yield self._body(change, {**_facts(change), "content": text})
        elif len(content) > settings.BINARY_CHUNK_THRESHOLD_BYTES:
            yield from self._pieces(change, [content])
        else:
            encoded = base64.b64encode(content).decode()
            yield self._body(change, {**_facts(change), "content": encoded, "content_encoding": "base64"})

    def _pieces(self, change: Change, content: Iterable[bytes]) -> Iterator[Body]:
        """One transfer, in order, under an id of its own: a transfer that failed starts again under another one."""
        transfer, length = self._transfer or str(uuid.uuid4()), settings.BINARY_CHUNK_SIZE_BYTES
        total = count_pieces(change.size)
        for index, piece in enumerate(_cut(_base64(content), length)):
            chunk = {"id": transfer, "index": index, "total": total}
            file = {**_facts(change), "content": piece, "content_encoding": "base64", "chunk": chunk}
            yield self._body(change, file, transfer)

    def _body(self, change: Change, file: dict[str, Any], transfer: str = "") -> Body:
        previous = {"previous_sha": change.previous.hex()} if change.event is Event.UPDATE else {}
        at = self._at or timezone.now()
        content = serialise(
            {
                "repository": self._repository,
                "file": file,
                **previous,
                "commit_sha": self._commit_sha,
                "timestamp": iso(at),
                **self._origin,
            }
        )
        return Body(content, at, transfer)


def count_pieces(size: int) -> int:
    """How many pieces a content of this size goes in: its base64 text, cut every BINARY_CHUNK_SIZE_BYTES."""
    return -(-(-(-size // 3) * 4) // settings.BINARY_CHUNK_SIZE_BYTES)


def _named(path: GitPath) -> dict[str, str]:
    """The path; where its bytes are not UTF-8, the exact ones beside it."""
    exact = path.exact
    return {"path": path.text, "path_base64": exact} if exact else {"path": path.text}


def _facts(change: Change) -> dict[str, Any]:
    return {**_named(change.path), "sha": change.sha256.hex(), "size": change.size}


def _as_text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _base64(content: Iterable[bytes]) -> Iterator[str]:
    """Base64 of the joined pieces, whatever their lengths."""
    rest = b""
    for piece in content:
        data = rest + piece
        whole = len(data) - len(data) % 3
        rest = data[whole:]
        yield base64.b64encode(data[:whole]).decode()
    yield base64.b64encode(rest).decode()


def _cut(texts: Iterable[str], length: int) -> Iterator[str]:
    """The joined texts, cut every `length` characters."""
    held = ""
    for text in texts:
        held += text
        while len(held) > length:
            yield held[:length]
            held = held[length:]
    if held:
        yield held
