"""The stage of the demo: a temporary Docora of its own beside a git host, and nothing left when it closes."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docora import env
from docora.demo.githost import GitHost

INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_STOP_PATIENCE = 30


class DemoFailed(Exception):
    """Something did not happen; the message is one line that says what."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API answered."""

    status: int
    body: dict[str, Any]


class Docora:
    """A whole Docora, as `manage.py up` runs it, with all of its state in one folder."""

    def __init__(self, folder: Path, git_host: GitHost) -> None:
        self.repos = folder / "repos"
        self._folder = folder
        self._port = _free_port()
        self._environment = _environment(folder, git_host)
        self._log = folder / "up.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("wb") as log, _uninterrupted():
            self._process = subprocess.Popen(
                [*_MANAGE, "up", "--port", str(self._port)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal reaches the demo alone, which then stops this.
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(_STOP_PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def is_ready(self) -> bool:
        return b"Ready after" in self._log.read_bytes()

    def check_that_it_runs(self) -> None:
        if self._process and self._process.poll() is not None:
            raise DemoFailed(f"Docora ended with status {self._process.returncode}")

    def manage(self, *words: str) -> str:
        """Run a management command; returns what it printed."""
        done = subprocess.run([*_MANAGE, *words], env=self._environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DemoFailed(f"manage.py {words[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
        return done.stdout

    def call(self, method: str, path: str, bearer: str, body: dict[str, Any] | None = None) -> Answer:
        """One call of the HTTP API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                return Answer(response.status, json.loads(response.read() or b"{}"))
        except urllib.error.HTTPError as error:
            return Answer(error.code, json.loads(error.read() or b"{}"))

    def clones(self) -> list[str]:
        """The bare clones on disk, by their paths below the folder of all clones."""
        owners = [owner for owner in self.repos.glob("*") if not owner.name.startswith(".")]
        return sorted(str(clone.relative_to(self.repos)) for owner in owners for clone in owner.glob("*"))

    def last_words(self, lines: int = 10) -> Iterator[str]:
        """The ends of its logs, for the person who asks why the demo failed."""
        for log in (self._log, *sorted((self._folder / "logs").glob("*.log"))):
            with log.open(errors="replace") as text:
                for line in deque(text, maxlen=lines):
                    yield f"{log.stem}: {line.rstrip()}"


_MANAGE = (sys.executable, str(env.BASE_DIR / "manage.py"))


def _environment(folder: Path, git_host: GitHost) -> dict[str, str]:
    """The environment without the settings of a Docora that this machine may run for real."""
    inherited = {name: value for name, value in os.environ.items() if name not in env.SETTINGS}
    return inherited | {
        "DJANGO_SETTINGS_MODULE": "docora.settings",
        "DOCORA_DATA_DIR": str(folder),
        "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        "DOCORA_GIT_HOSTS": git_host.address,
        "SCAN_CONCURRENCY": "1",
        "DELIVERY_CONCURRENCY": "2",
        "WEB_CONCURRENCY": "1",
        "DOCORA_STOP_GRACE": "5",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Holds back Ctrl-C and SIGTERM: a child that was started and is not noted yet could not be stopped."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in INTERRUPTS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@contextmanager
def stage() -> Iterator[tuple[GitHost, Docora]]:
    """A git host that serves and a Docora that is not started yet; both end with the block, without a trace."""
    with tempfile.TemporaryDirectory(prefix="docora-demo-") as folder, GitHost(Path(folder) / "git") as git_host:
        data = Path(folder) / "docora"
        data.mkdir(mode=0o700)
        docora = Docora(data, git_host)
        try:
            yield git_host, docora
        finally:
            docora.stop()


def wait(condition: Callable[[], bool], *, until: float, otherwise: str, docora: Docora) -> Iterator[None]:
    """Yields while the condition does not hold yet, so that the caller can show something meanwhile."""
    deadline = time.monotonic() + until
    while not condition():
        docora.check_that_it_runs()
        if time.monotonic() > deadline:
            raise DemoFailed(otherwise)
        yield
        time.sleep(0.05)
