"""A git server over HTTP, in a process of its own: every request is answered by `git http-backend`.

    python -m benchmarks.path.git_server FOLDER

prints its port. FOLDER/owner/name.git is served as /owner/name. What is asked for below /instant/ is FOLDER/instant.git
under any name, and each answer is kept: from the second time on, the server answers at once.

GET /-/log?since=SECONDS lists the requests since then: name, kind and time, by the clock that all processes share.
"""

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from benchmarks.path.plain_http import Request, json_answer, read_request

_ROUTE = re.compile(r"/(?P<name>[^/]+/[^/]+?)(?:\.git)?/(?P<door>info/refs|git-upload-pack)")
_COMMAND = re.compile(rb"command=([a-z-]+)")
_PIECE = 1 << 16
_CONFIG = {"uploadpack.allowAnySHA1InWant": "true", "uploadpack.allowFilter": "true", "safe.directory": "*"}
_INSTANT = "instant/"


@dataclass(frozen=True, slots=True)
class _Question:
    """What the answer depends on."""

    method: str
    name: str
    door: str
    query: str
    protocol: str
    content_type: str
    encoding: str
    body: bytes

    @property
    def kind(self) -> str:
        """In protocol 2, an ls-remote is an advertise and an ls-refs; a fetch is both of them and a fetch."""
        if self.method == "GET":
            return "advertise"
        found = _COMMAND.search(self.body[:100])
        # A long list of commits that the client has is packed; only a fetch has one.
        return found[1].decode() if found else "fetch"


class _Server:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._log: list[tuple[str, str, float]] = []
        self._kept: dict[_Question, bytes] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await read_request(reader):
                await self._answer(request, writer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        url = urlsplit(request.target)
        if url.path == "/-/log":
            since = float(parse_qs(url.query)["since"][0])
            writer.write(json_answer([entry for entry in self._log if entry[2] >= since]))
            return
        route = _ROUTE.fullmatch(url.path)
        if route is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        question = _question(request, route["name"], route["door"], url.query)
        self._log.append((question.name, question.kind, time.monotonic()))
        if question.name.startswith(_INSTANT):
            writer.write(await self._kept_answer(question))
        else:
            await _stream(self._backend(question, question.name), writer)

    async def _kept_answer(self, question: _Question) -> bytes:
        # Without its name: all of them are one repository.
        key = replace(question, name="")
        if key not in self._kept:
            output = b"".join([piece async for piece in self._backend(question, "instant")])
            head, _, body = output.partition(b"\r\n\r\n")
            self._kept[key] = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n\r\n%s" % (len(body), head, body)
        return self._kept[key]

    async def _backend(self, question: _Question, folder: str) -> AsyncIterator[bytes]:
        process = await asyncio.create_subprocess_exec(
            "git",
            "http-backend",
            env=_environment(self._root / f"{folder}.git", question),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 20,
        )
        stdin, stdout = process.stdin, process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("no pipes")
        stdin.write(question.body)
        stdin.close()
        try:
            while piece := await stdout.read(_PIECE):
                yield piece
        finally:
            if process.returncode is None and not stdout.at_eof():
                process.kill()
            await process.wait()


def _question(request: Request, name: str, door: str, query: str) -> _Question:
    headers = request.headers
    return _Question(
        method=request.method,
        name=name,
        door=door,
        query=query,
        protocol=headers.get("git-protocol", ""),
        content_type=headers.get("content-type", ""),
        encoding=headers.get("content-encoding", ""),
        body=request.body,
    )


def _environment(repository: Path, question: _Question) -> dict[str, str]:
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": str(len(_CONFIG)),
        "GIT_PROJECT_ROOT": str(repository),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_PROTOCOL": question.protocol,
        "REQUEST_METHOD": question.method,
        "PATH_INFO": f"/{question.door}",
        "QUERY_STRING": question.query,
        "CONTENT_TYPE": question.content_type,
        "CONTENT_LENGTH": str(len(question.body)),
        "HTTP_CONTENT_ENCODING": question.encoding,
        "REMOTE_ADDR": "127.0.0.1",
    }
    for number, (key, value) in enumerate(_CONFIG.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


async def _stream(output: AsyncIterator[bytes], writer: asyncio.StreamWriter) -> None:
    """The CGI answer as HTTP: its head first, then a chunk for each piece."""
    held = b""
    async for piece in output:
        held += piece
        if b"\r\n\r\n" in held:
            break
    head, _, rest = held.partition(b"\r\n\r\n")
    found = re.match(rb"Status: (\d+[^\r]*)\r\n", head)
    status = found[1] if found else b"200 OK"
    writer.write(b"HTTP/1.1 %s\r\nTransfer-Encoding: chunked\r\n%s\r\n\r\n" % (status, head))
    if rest:
        writer.write(b"%x\r\n%s\r\n" % (len(rest), rest))
    async for piece in output:
        writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        await writer.drain()
    writer.write(b"0\r\n\r\n")


async def _main(root: Path) -> None:
    server = await asyncio.start_server(_Server(root).serve, "127.0.0.1", 0, limit=1 << 20, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1])))
