"""A receiver that believes nothing, in a process of its own: it verifies both signatures and the hash of every content.

    python -m benchmarks.path.receiver

prints its port. The app `name` has the base URL http://127.0.0.1:PORT/name; all apps share one webhook key.

GET /-/wait?app=…&repository=…&commit=…&paths=N&messages=M&seconds=S answers as soon as N different paths and M messages
of that commit are acknowledged, or after S seconds: how many there are and when the first and the last came.
GET /-/files?app=…&repository=… lists the SHA-256 of every file that the app would have now.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from benchmarks.path.plain_http import Request, json_answer, parse_head

WEBHOOK_KEY = "the-key-of-every-app-of-the-benchmark"
_ACCEPTED = b"HTTP/1.1 204 No Content\r\n\r\n"
_REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
_STATE = hmac.new(WEBHOOK_KEY.encode(), digestmod="sha256")


class Breach(Exception):
    """The message may not be believed."""


def signature(prefix: str, body: bytes) -> hmac.HMAC:
    state = _STATE.copy()
    state.update(prefix.encode())
    state.update(body)
    return state


def signed_headers(message_id: str, body: bytes) -> dict[str, str]:
    """What a sender that knows the key puts beside the body."""
    now = str(int(time.time()))
    standard = base64.b64encode(signature(f"{message_id}.{now}.", body).digest()).decode()
    return {
        "Content-Type": "application/json",
        "X-Docora-Timestamp": now,
        "X-Docora-Signature": f"sha256={signature(f'{now}.', body).hexdigest()}",
        "webhook-id": message_id,
        "webhook-timestamp": now,
        "webhook-signature": f"v1,{standard}",
    }


@dataclass(slots=True)
class _Commit:
    """What came of one commit."""

    paths: set[str] = field(default_factory=set)
    messages: int = 0
    first_at: float = 0.0
    last_at: float = 0.0


@dataclass(slots=True)
class _Waiter:
    commit: _Commit
    paths: int
    messages: int
    done: "asyncio.Future[None]"

    @property
    def holds(self) -> bool:
        return len(self.commit.paths) >= self.paths and self.commit.messages >= self.messages


class Books:
    """What every app was told."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], dict[str, str]] = {}
        self.problems: list[str] = []
        self._commits: dict[tuple[str, str, str], _Commit] = {}
        self._transfers: dict[str, Any] = {}
        self._waiters: list[_Waiter] = []

    def take(self, app: str, event: str, request: Request, body: bytes) -> bool:
        """Whether the message is accepted."""
        try:
            _verify(request.headers, body)
            self._apply(app, event, json.loads(body))
        except (Breach, KeyError, ValueError) as error:
            self.problems.append(f"{event}: {error!r}")
            return False
        return True

    def _apply(self, app: str, event: str, payload: dict[str, Any]) -> None:
        if event not in {"create", "update", "delete"}:
            self.problems.append(f"{event}: {payload.get('error', '')}")
            return
        file, repository = payload["file"], payload["repository"]["repository_id"]
        files = self.files.setdefault((app, repository), {})
        if event == "delete":
            files.pop(file["path"], None)
        elif self._is_complete(file):
            files[file["path"]] = file["sha"]
        else:
            return
        self._count(self.commit(app, repository, payload["commit_sha"]), file["path"])

    def _is_complete(self, file: dict[str, Any]) -> bool:
        """Checks the hash with the last piece of a file; most files have one alone."""
        content = file["content"].encode()
        if file.get("content_encoding") == "base64":
            content = base64.b64decode(content, validate=True)
        chunk = file.get("chunk")
        if chunk is None:
            _check_hash(file, hashlib.sha256(content))
            return True
        digest = self._transfers.setdefault(chunk["id"], hashlib.sha256())
        digest.update(content)
        if chunk["index"] + 1 < chunk["total"]:
            return False
        _check_hash(file, self._transfers.pop(chunk["id"]))
        return True

    def commit(self, app: str, repository: str, sha: str) -> _Commit:
        return self._commits.setdefault((app, repository, sha), _Commit())

    def _count(self, commit: _Commit, path: str) -> None:
        commit.paths.add(path)
        commit.messages += 1
        commit.last_at = time.monotonic()
        commit.first_at = commit.first_at or commit.last_at
        for waiter in self._waiters:
            if waiter.commit is commit and waiter.holds and not waiter.done.done():
                waiter.done.set_result(None)

    async def wait(self, commit: _Commit, *, paths: int, messages: int, seconds: float) -> dict[str, Any]:
        waiter = _Waiter(commit, paths, messages, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            if not waiter.holds:
                await asyncio.wait([waiter.done], timeout=seconds)
        finally:
            self._waiters.remove(waiter)
        return {
            "done": waiter.holds,
            "paths": len(commit.paths),
            "messages": commit.messages,
            "first_at": commit.first_at,
            "last_at": commit.last_at,
            "problems": self.problems[:5],
        }


def _verify(headers: dict[str, str], body: bytes) -> None:
    own = f"sha256={signature(headers['x-docora-timestamp'] + '.', body).hexdigest()}"
    if not hmac.compare_digest(own, headers["x-docora-signature"]):
        raise Breach("X-Docora-Signature does not match the body")
    prefix = f"{headers['webhook-id']}.{headers['webhook-timestamp']}."
    standard = base64.b64encode(signature(prefix, body).digest()).decode()
    if not hmac.compare_digest(f"v1,{standard}", headers["webhook-signature"]):
        raise Breach("webhook-signature does not match the body")


def _check_hash(file: dict[str, Any], digest: Any) -> None:
    if digest.hexdigest() != file["sha"]:
        raise Breach(f"the content of {file['path']!r} does not have the hash {file['sha']}")


class _Connection(asyncio.Protocol):
    def __init__(self, books: Books) -> None:
        self._books = books
        self._held = bytearray()
        self._request: Request | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._held += data
        while self._take_one():
            pass

    def _take_one(self) -> bool:
        """Answer one whole request; False while it is not whole yet."""
        if self._request is None:
            end = self._held.find(b"\r\n\r\n")
            if end < 0:
                return False
            self._request = parse_head(bytes(self._held[:end]))
            del self._held[: end + 4]
        length = int(self._request.headers.get("content-length", 0))
        if len(self._held) < length:
            return False
        body = bytes(self._held[:length])
        del self._held[:length]
        request, self._request = self._request, None
        self._answer(request, body)
        return True

    def _answer(self, request: Request, body: bytes) -> None:
        if request.method == "GET":
            task = asyncio.get_running_loop().create_task(self._tell(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        app, _, event = request.target.strip("/").rpartition("/")
        self._transport.write(_ACCEPTED if self._books.take(app, event, request, body) else _REFUSED)

    async def _tell(self, request: Request) -> None:
        url = urlsplit(request.target)
        asked = dict(parse_qsl(url.query))
        if url.path == "/-/files":
            self._transport.write(json_answer(self._books.files.get((asked["app"], asked["repository"]), {})))
            return
        found = await self._books.wait(
            self._books.commit(asked["app"], asked["repository"], asked["commit"]),
            paths=int(asked["paths"]),
            messages=int(asked["messages"]),
            seconds=float(asked["seconds"]),
        )
        self._transport.write(json_answer(found))


async def _main() -> None:
    books = Books()
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(books), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
