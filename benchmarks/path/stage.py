"""One service with its git server and its receiver; all of it ends with the `with`."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from benchmarks.path import remote, usage
from benchmarks.path.postgres import Postgres
from benchmarks.path.receiver import WEBHOOK_KEY
from benchmarks.path.remote import Files, Remote
from benchmarks.path.service import ROOT, Service
from benchmarks.path.usage import Peak, PeakMemory

_SYNC_PATIENCE = 60


class NotDelivered(Exception):
    """It took longer than anybody wants to wait."""


class Wrong(Exception):
    """The receiver, the console or the git server tells another story than it should."""


@dataclass(frozen=True, slots=True)
class App:
    name: str
    bearer: str


@dataclass(frozen=True, slots=True)
class Watch:
    app: App
    remote: Remote
    repository_id: str


@dataclass(frozen=True, slots=True)
class Told:
    """What the receiver acknowledged of one commit, by the clock that all processes share."""

    paths: int
    messages: int
    first_at: float
    last_at: float


class Stage:
    def __init__(self, folder: Path, *, postgres: Postgres | None, settings: dict[str, str]) -> None:
        folder.mkdir()
        self.folder = folder
        self._hosted = folder / "hosted"
        self._hosted.mkdir()
        self._postgres, self._settings = postgres, settings
        self._open = ExitStack()

    def __enter__(self) -> Self:
        try:
            git_server = self._open.enter_context(_server("git_server", str(self._hosted)))
            receiver = self._open.enter_context(_server("receiver"))
            self._servers = (git_server.pid, receiver.pid)
            self.git_address = git_server.address
            self.receiver = f"http://{receiver.address}"
            url = self._postgres.create_database() if self._postgres else ""
            self.service = Service(self.folder, self.git_address, database_url=url, settings=self._settings)
            self._open.callback(self.service.stop)
            self.service.wait_until_ready()
            self._memory = self._open.enter_context(PeakMemory(self.service.pid))
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def let_servers_give_way(self) -> None:
        """The git host and the receiver have machines of their own elsewhere. From now on the web and Valkey come
        before them here, as they come before the workers."""
        for pid in self._servers:
            usage.let_give_way(pid)

    def unobserved(self) -> AbstractContextManager[None]:
        """Nothing looks at the memory of the processes meanwhile."""
        return self._memory.paused()

    @property
    def peak(self) -> Peak:
        return self._memory.peak

    def cpu_seconds(self) -> float:
        """What the service has used since its start, with git's children and the database server."""
        server = usage.cpu_seconds(self._postgres.pid) if self._postgres else 0.0
        return usage.cpu_seconds(self.service.pid) + server

    def publish(self, name: str, template: Path) -> Remote:
        """Put a copy of a repository on the git server."""
        path = self._hosted / f"{name}.git"
        remote.link(template, path)
        return Remote(path, name, f"http://{self.git_address}/{name}")

    def create(self, name: str, files: Files) -> Remote:
        path = self._hosted / f"{name}.git"
        path.parent.mkdir(parents=True, exist_ok=True)
        remote.create(path, files)
        return Remote(path, name, f"http://{self.git_address}/{name}")

    def instant(self, name: str) -> Remote:
        """The repository `instant` under a name below instant/, where the git server answers at once."""
        return Remote(self._hosted / "instant.git", name, f"http://{self.git_address}/{name}")

    def onboard(self, name: str) -> App:
        bearer = self.service.inside("onboard", name, f"{self.receiver}/{name}", WEBHOOK_KEY)
        return App(name, bearer)

    def watch(self, app: App, repository: Remote) -> Watch:
        answer = self.service.call("POST", "/repositories", app.bearer, {"github_url": repository.url})
        return Watch(app, repository, answer["repository_id"])

    def look(self, *watches: Watch) -> float:
        """Ask for a look at each; returns the moment of asking."""
        return float(self.service.inside("look", *{watch.repository_id for watch in watches}))

    def told(self, watch: Watch, commit: str, *, paths: int = 0, messages: int = 0, seconds: float) -> Told:
        """Wait until the receiver has acknowledged so much of a commit."""
        question = {
            "app": watch.app.name,
            "repository": watch.repository_id,
            "commit": commit,
            "paths": paths,
            "messages": messages,
            "seconds": seconds,
        }
        answer = _get(f"{self.receiver}/-/wait?{urlencode(question)}", seconds + 10)
        if answer["problems"]:
            raise Wrong(f"the receiver complains: {answer['problems'][0]}")
        if not answer["done"]:
            raise NotDelivered(f"not delivered in {seconds:g} s ({answer['paths']} of {paths or messages})")
        return Told(answer["paths"], answer["messages"], answer["first_at"], answer["last_at"])

    def wait_until_synced(self, watch: Watch, commit: str) -> None:
        """What the receiver has, the API must say soon."""
        deadline = time.monotonic() + _SYNC_PATIENCE
        while True:
            found = self.service.call("GET", f"/repositories/{watch.repository_id}", watch.app.bearer)
            if found["status"] == "synced" and found["synced_commit"] == commit:
                return
            if time.monotonic() > deadline:
                raise Wrong(f"the API does not say synced {_SYNC_PATIENCE} s after the last acknowledgement: {found}")
            time.sleep(0.1)

    def files(self, watch: Watch) -> dict[str, str]:
        """The SHA-256 of every file that the app was told."""
        question = urlencode({"app": watch.app.name, "repository": watch.repository_id})
        found: dict[str, str] = _get(f"{self.receiver}/-/files?{question}", 60)
        return found

    def git_requests(self, since: float) -> list[tuple[str, str, float]]:
        """Name of the repository, kind of request, and when it came."""
        found = _get(f"http://{self.git_address}/-/log?since={since}", 60)
        return [(name, kind, at) for name, kind, at in found]


def _get(url: str, seconds: float) -> Any:
    with urllib.request.urlopen(url, timeout=seconds) as answer:  # noqa: S310  a URL of our own
        return json.loads(answer.read())


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of the benchmark, in a session of its own; `address` is host:port."""

    address: str
    pid: int


@contextmanager
def _server(module: str, *words: str) -> Iterator[_Server]:
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.path.{module}", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            if process.stdout is None:
                raise RuntimeError("no pipe")
            yield _Server(f"127.0.0.1:{int(process.stdout.readline())}", process.pid)
        finally:
            process.terminate()
