"""What everything is compared with: bare git, and a bare HTTP client that sends the same bodies."""

import asyncio
import base64
import hashlib
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.path.receiver import signed_headers
from benchmarks.path.remote import GIT_ENVIRONMENT, git

# As many requests as an app gets at the same time, unless it wants another number.
_LANES = 8
_HEAD = "refs/heads/main"


@dataclass(frozen=True, slots=True)
class Post:
    url: str
    headers: dict[str, str]
    body: bytes


class BareClone:
    """A clone that bare git keeps, with nothing but what it costs."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        git("init", "--quiet", "--bare", str(folder))
        for key, value in (("gc.auto", "0"), ("maintenance.auto", "false")):
            git("config", key, value, folder=folder)

    def ask(self) -> float:
        """Seconds of one `git ls-remote`."""
        started = time.perf_counter()
        git("ls-remote", "--symref", self._url, "HEAD")
        return time.perf_counter() - started

    def fetch(self, commit: str) -> float:
        """Seconds of one `git fetch --depth=1`."""
        started = time.perf_counter()
        words = ("fetch", "--quiet", "--no-tags", "--depth=1", self._url, f"+{commit}:{_HEAD}")
        git(*words, folder=self._folder)
        return time.perf_counter() - started

    def read_and_hash(self) -> tuple[float, dict[str, str]]:
        """Seconds, and the SHA-256 of every file of the commit that was fetched last."""
        started = time.perf_counter()
        hashes = {path: hashlib.sha256(content).hexdigest() for path, content in self.contents()}
        return time.perf_counter() - started, hashes

    def contents(self, chosen: frozenset[str] | None = None) -> Iterator[tuple[str, bytes]]:
        listing = git("ls-tree", "-r", "-z", "--full-tree", _HEAD, folder=self._folder).split(b"\0")[:-1]
        entries = [line.split(b"\t", 1) for line in listing if b" blob " in line]
        blobs = {path.decode(errors="surrogateescape"): entry.split()[2] for entry, path in entries}
        names = [path for path in blobs if chosen is None or path in chosen]
        yield from zip(names, self._read([blobs[path] for path in names]), strict=True)

    def _read(self, blobs: list[bytes]) -> Iterator[bytes]:
        command = ["git", "cat-file", "--batch", "--buffer"]
        with subprocess.Popen(
            command, cwd=self._folder, env=GIT_ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            requests, answers = process.stdin, process.stdout
            if requests is None or answers is None:
                raise RuntimeError("no pipes")
            threading.Thread(target=lambda: (requests.write(b"\n".join(blobs) + b"\n"), requests.close())).start()
            for _ in blobs:
                size = int(answers.readline().split()[2])
                yield answers.read(size)
                answers.read(1)


def posts(clone: BareClone, receiver: str, commit: str, *, chosen: frozenset[str] | None = None) -> list[Post]:
    """The webhooks that tell one app about the files of a commit, made and signed before the clock starts."""
    found = []
    for number, (path, content) in enumerate(clone.contents(chosen)):
        body = _body(path, content, commit)
        found.append(Post(f"{receiver}/bare/create", signed_headers(f"msg_{commit[:8]}_{number}", body), body))
    return found


def _body(path: str, content: bytes, commit: str) -> bytes:
    name = path.encode(errors="replace").decode()
    file: dict[str, Any] = {"path": name, "sha": hashlib.sha256(content).hexdigest(), "size": len(content)}
    try:
        file["content"] = content.decode()
    except UnicodeDecodeError:
        file |= {"content": base64.b64encode(content).decode(), "content_encoding": "base64"}
    repository = {"repository_id": "bare", "github_url": "https://example.org/a/b", "owner": "a", "name": "b"}
    payload = {"repository": repository, "file": file, "commit_sha": commit, "timestamp": "2025-01-01T00:00:00.000Z"}
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode()


def send_all(requests: list[Post]) -> float:
    """Seconds until the last one is acknowledged."""
    return asyncio.run(_send_all(requests))


async def _send_all(requests: list[Post]) -> float:
    waiting = iter(requests)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=_LANES)) as session:
        started = time.perf_counter()

        async def lane() -> None:
            for request in waiting:
                async with session.post(request.url, data=request.body, headers=request.headers) as answer:
                    await answer.read()
                    answer.raise_for_status()

        await asyncio.gather(*(lane() for _ in range(_LANES)))
        return time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class BareLooks:
    """What looking costs a client that only asks."""

    per_second: float
    cpu_milliseconds: float


def bare_looks(urls: list[str], *, at_once: int = 50) -> BareLooks:
    """One HTTP question (git protocol 2, ls-refs) for each."""
    started, busy = time.perf_counter(), time.process_time()
    asyncio.run(_ask_all(urls, at_once))
    took, work = time.perf_counter() - started, time.process_time() - busy
    return BareLooks(len(urls) / took, 1000 * work / len(urls))


async def _ask_all(urls: list[str], at_once: int) -> None:
    lines = [b"command=ls-refs\n", b"object-format=sha1", None, b"peel\n", b"symrefs\n", b"ref-prefix HEAD\n"]
    body = b"".join(b"0001" if line is None else b"%04x%s" % (len(line) + 4, line) for line in lines) + b"0000"
    headers = {"Git-Protocol": "version=2", "Content-Type": "application/x-git-upload-pack-request"}
    waiting = iter(urls)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once)) as session:

        async def lane() -> None:
            for url in waiting:
                async with session.post(f"{url}/git-upload-pack", data=body, headers=headers) as answer:
                    answer.raise_for_status()
                    if b" HEAD" not in await answer.read():
                        raise RuntimeError("the git server does not name its HEAD")

        await asyncio.gather(*(lane() for _ in range(at_once)))
