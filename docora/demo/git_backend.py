"""One `git http-backend` for each request to the git host: the body goes in, headers and output come out."""

import itertools
import os
import signal
import subprocess
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from email.message import Message
from http.client import HTTPMessage, parse_headers
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
        self._zipped = headers.get("Content-Encoding") == "gzip"
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def opening(self) -> bytes:
        """The first bytes as the client meant them; they stay in the body."""
        first = next(self._pieces, b"")
        self._pieces = itertools.chain([first], self._pieces)
        return zlib.decompressobj(31).decompress(first, 64) if self._zipped else first[:64]


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


class Backend:
    """One `git http-backend`, fed and read at the same time; leaving the `with` ends it and its children."""

    def __init__(self, repository: Path, variables: dict[str, str], body: Body) -> None:
        """`variables` are those of the request, as CGI names them."""
        place = {"GIT_PROJECT_ROOT": str(repository), "GIT_HTTP_EXPORT_ALL": "1"}
        self._process = subprocess.Popen(
            [GIT, "http-backend"],
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

    def headers(self) -> HTTPMessage:
        return parse_headers(self._stdout)

    def output(self) -> Iterator[bytes]:
        return iter(lambda: self._stdout.read1(_PIECE), b"")

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
