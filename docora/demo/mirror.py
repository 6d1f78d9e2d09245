"""A client's copy of the repositories, made from webhooks alone; it notices every breach of the contract."""

import base64
import hashlib
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

_UNDECODABLE = re.compile("[\udc80-\udcff]")


@dataclass(frozen=True, slots=True)
class _Place:
    repository_id: str
    path: str


@dataclass(slots=True)
class _Transfer:
    """A file that arrives in pieces."""

    total: int
    pieces: list[str] = field(default_factory=list)


class Mirror:
    """`files[repository_id][path]` is the content as the app has it now.

    A path is text, its bytes that are not UTF-8 as surrogate escapes. Each breach of the contract is a
    sentence in `problems`; what it concerns is applied all the same.
    """

    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}
        self.notices: list[dict[str, Any]] = []
        # By repository: the digest of the last commit that was complete.
        self.completed: dict[str, str] = {}
        self.problems: list[str] = []
        # Messages that come again after they were acknowledged are a breach, unless a test provokes them.
        self.repeats_are_allowed = False
        self._transfers: dict[str, _Transfer] = {}
        self._acknowledged: set[str] = set()
        self._unanswered: set[_Place] = set()

    def forget(self, repository_id: str) -> None:
        """Start over, as an app does that watches a repository anew."""
        self.files.pop(repository_id, None)
        self._unanswered = {place for place in self._unanswered if place.repository_id != repository_id}

    def apply(self, event: str, payload: dict[str, Any], *, message_id: str = "", acknowledged: bool = True) -> None:
        """Take one message in; if the answer to it is lost, its sender may repeat it."""
        if event in ("sync_failed", "sync_recovered", "sync_complete", "ping"):
            self.notices.append(payload)
            if event == "sync_complete":
                self._complete(payload)
            return
        file = payload["file"]
        place = _Place(payload["repository"]["repository_id"], exact_path(file))
        breaches = [*self._repeats(message_id), *self._take(event, place, payload)]
        self.problems += [f"{event} {place.path!r}: {breach}" for breach in breaches]
        if not acknowledged:
            self._unanswered.add(place)
            return
        self._acknowledged.add(message_id)
        if file.get("chunk", {}).get("id") not in self._transfers:
            self._unanswered.discard(place)

    def _complete(self, payload: dict[str, Any]) -> None:
        self.completed[payload["repository"]["repository_id"]] = payload["digest"]
        if not self.repeats_are_allowed:
            self.problems += self._differences(payload)

    def _differences(self, payload: dict[str, Any]) -> Iterator[str]:
        """Where what the app holds is not what Docora says that it has."""
        files = self.files.get(payload["repository"]["repository_id"], {})
        if payload["files"] != len(files):
            yield f"sync_complete: {payload['files']} files, {len(files)} are here"
        if payload["digest"] != digest_of(files):
            yield f"sync_complete: digest {payload['digest']} is not that of the {len(files)} files here"

    def _repeats(self, message_id: str) -> Iterator[str]:
        if message_id and message_id in self._acknowledged and not self.repeats_are_allowed:
            yield f"message {message_id} came again after it was acknowledged"

    def _take(self, event: str, place: _Place, payload: dict[str, Any]) -> Iterator[str]:
        file = payload["file"]
        if escaped_path(place.path) != file["path"]:
            yield f"path {file['path']!r} does not fit path_base64"
        if "chunk" in file:
            whole = yield from self._add_piece(file)
            if whole is None:
                return
            file = file | {"content": whole}
        yield from self._mismatches(event, place, payload)
        if event == "delete":
            self.files.get(place.repository_id, {}).pop(place.path, None)
        else:
            yield from self._store(place, file)

    def _mismatches(self, event: str, place: _Place, payload: dict[str, Any]) -> Iterator[str]:
        """Where the message does not follow from what the app holds."""
        if place in self._unanswered or self.repeats_are_allowed:
            return
        held = self.files.get(place.repository_id, {}).get(place.path)
        if event == "create" and held is not None:
            yield "the path is already there"
        elif event != "create" and held is None:
            yield "the path is not known"
        elif held is not None and _sha(held) != _sha_before(event, payload):
            yield "the sha of what was there does not match"

    def _add_piece(self, file: dict[str, Any]) -> Generator[str, None, str | None]:
        """Collect a piece; returns the whole content once the last one is there."""
        chunk = file["chunk"]
        transfer = self._transfers.setdefault(chunk["id"], _Transfer(chunk["total"]))
        seen = len(transfer.pieces)
        if (chunk["index"], chunk["total"]) != (seen, transfer.total):
            yield f"piece {chunk['index']} of {chunk['total']} came after {seen} of {transfer.total}"
        transfer.pieces.append(file["content"])
        if len(transfer.pieces) < transfer.total:
            return None
        return "".join(self._transfers.pop(chunk["id"]).pieces)

    def _store(self, place: _Place, file: dict[str, Any]) -> Iterator[str]:
        try:
            content = decoded_content(file)
        except ValueError as error:
            yield f"the content cannot be decoded: {error}"
            return
        if _sha(content) != file["sha"]:
            yield "sha is not the SHA-256 of the content"
        if len(content) != file["size"]:
            yield f"size is {file['size']}, the content has {len(content)} bytes"
        self.files.setdefault(place.repository_id, {})[place.path] = content


def digest_of(files: dict[str, bytes]) -> str:
    """One number for all of it, as docs/receivers.md has it."""
    total = 0
    for path, content in files.items():
        exact = path.encode(errors="surrogateescape")
        term = len(exact).to_bytes(8, "big") + exact + hashlib.sha256(content).digest()
        total += int.from_bytes(hashlib.sha256(term).digest(), "big")
    return f"{total % 2**256:064x}"


def decoded_content(file: dict[str, Any]) -> bytes:
    if file.get("content_encoding") == "base64":
        return base64.b64decode(file["content"], validate=True)
    return str(file["content"]).encode()


def exact_path(file: dict[str, Any]) -> str:
    """The path, with bytes that are not UTF-8 (known from path_base64) as surrogate escapes."""
    if "path_base64" in file:
        return base64.b64decode(file["path_base64"], validate=True).decode(errors="surrogateescape")
    return str(file["path"])


def escaped_path(path: str) -> str:
    """The path as `file.path` shows it: each byte that is not UTF-8 as %XX."""
    return _UNDECODABLE.sub(lambda found: f"%{ord(found[0]) - 0xDC00:02X}", path)


def _sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _sha_before(event: str, payload: dict[str, Any]) -> str | None:
    return payload.get("previous_sha") if event == "update" else payload["file"].get("sha")
