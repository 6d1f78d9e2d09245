"""One git for each request to the git host: the body goes in, headers and output come out.

A request to fetch is answered by `git upload-pack` itself. `git http-backend`, which answers the others, would start
two more processes for it, and take four times as long.
"""

import itertools
import os
import signal
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from http.client import parse_headers
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Self

from docora.demo.bare import GIT, GIT_ENVIRONMENT

_PIECE = 65536
# What GitHub allows too.
_CONFIGURED = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "http.receivepack",
    "GIT_CONFIG_VALUE_0": "true",
    "GIT_CONFIG_KEY_1": "uploadpack.allowAnySHA1InWant",
    "GIT_CONFIG_VALUE_1": "true",
    "GIT_CONFIG_KEY_2": "uploadpack.allowFilter",
    "GIT_CONFIG_VALUE_2": "true",
}


class Body:
    """The request's body in pieces, read once, whichever way the client frames it."""

    def __init__(self, stream: BufferedIOBase, headers: Message) -> None:
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        pieces = _chunks(stream) if chunked else _counted(stream, int(headers.get("Content-Length") or 0))
        self._pieces = _unzipped(pieces) if headers.get("Content-Encoding") == "gzip" else pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def opening(self) -> bytes:
        """The first bytes; they stay in the body."""
        first = next(self._pieces, b"")
        self._pieces = itertools.chain([first], self._pieces)
        return first[:64]


def _counted(stream: BufferedIOBase, length: int) -> Iterator[bytes]:
    while length and (piece := stream.read(min(length, _PIECE))):
        length -= len(piece)
        yield piece


def _chunks(stream: BufferedIOBase) -> Iterator[bytes]:
    while size := int(stream.readline().split(b";")[0], 16):
        yield stream.read(size)
        stream.readline()
    while stream.readline().strip():  # trailers
        pass


def _unzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    unzip = zlib.decompressobj(31)
    for piece in pieces:
        if plain := unzip.decompress(piece):
            yield plain


@dataclass(frozen=True, slots=True)
class _Answer:
    """How a request is answered: by which git, and with what before its output."""

    arguments: tuple[str, ...]
    content_type: str = ""
    opening: bytes = b""


def _answer(repository: Path, variables: dict[str, str]) -> _Answer:
    """The same as `git http-backend` would do."""
    fetch, kind = ("upload-pack", "--stateless-rpc"), "application/x-git-upload-pack"
    match variables["REQUEST_METHOD"], variables["PATH_INFO"], variables["QUERY_STRING"]:
        case "GET", "/info/refs", "service=git-upload-pack":
            version_2 = "version=2" in variables["GIT_PROTOCOL"].split(":")
            opening = b"" if version_2 else b"001e# service=git-upload-pack\n0000"
            return _Answer((*fetch, "--advertise-refs", str(repository)), f"{kind}-advertisement", opening)
        case "POST", "/git-upload-pack", _:
            return _Answer((*fetch, str(repository)), f"{kind}-result")
    return _Answer(("http-backend",))


class Backend:
    """One git, fed and read at the same time; leaving the `with` ends it and its children."""

    def __init__(self, repository: Path, variables: dict[str, str], body: Body) -> None:
        """`variables` are those of the request, as CGI names them."""
        place = {"GIT_PROJECT_ROOT": str(repository), "GIT_HTTP_EXPORT_ALL": "1"}
        self._answer = _answer(repository, variables)
        self._process = subprocess.Popen(
            [GIT, *self._answer.arguments],
            env=GIT_ENVIRONMENT | _CONFIGURED | place | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._fed = False
        self._feeder = threading.Thread(target=self._feed, args=(body,), name="git host, request body")
        self._feeder.start()

    def _feed(self, body: Body) -> None:
        stdin = self._process.stdin
        if stdin is None:
            return
        with suppress(OSError, ValueError), stdin:
            for piece in body:
                stdin.write(piece)
            self._fed = True

    def headers(self) -> Message:
        if not self._answer.content_type:
            return parse_headers(self._stdout)
        headers = Message()
        headers["Cache-Control"] = "no-cache, max-age=0, must-revalidate"
        headers["Content-Type"] = self._answer.content_type
        return headers

    def output(self) -> Iterator[bytes]:
        opening = [self._answer.opening] if self._answer.opening else []
        return itertools.chain(opening, iter(lambda: self._stdout.read1(_PIECE), b""))

    def took_the_whole_body(self) -> bool:
        self._feeder.join()
        return self._fed

    @property
    def _stdout(self) -> Any:
        return self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._stdout.close()
