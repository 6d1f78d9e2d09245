"""Starts `manage.py` in a fifth of the time: in a fork of a Python that has imported the libraries already.

Which libraries, and how a fork is made the same as a new process: `warm_forks`. Where the start itself is what is
tested, a test starts a new Python: `Service.start_as_it_is`, and every `subprocess` in a test.
"""

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Protocol

ROOT = Path(__file__).parent.parent.parent
MANAGE = str(ROOT / "manage.py")
# A fork shows its environment to other processes in the place where the first one of its parent was.
_ROOM = {"ROOM": "x" * (32 << 10)}


class Process(Protocol):
    """What the tests ask of a process that they have started."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class WarmProcess:
    """As `subprocess.Popen` does it, of a process that is the child of another one."""

    def __init__(self, news: int) -> None:
        self._news = os.fdopen(news)
        self.pid = int(self._news.readline())
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None and select.select([self._news], [], [], 0)[0]:
            self._read_status()
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        if self._status is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("manage.py", timeout or 0)
            self._read_status()
        assert self._status is not None
        return self._status

    def _read_status(self) -> None:
        self._status = int(self._news.readline())
        self._news.close()

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    *words: str,
    environment: Mapping[str, str],
    stdin: IO[str] | int,
    stdout: IO[str] | int,
    stderr: IO[str] | int,
    own_mark: str = "",
) -> Process:
    """`manage.py` with these words; `own_mark` is a variable that begins with the id of the process."""
    if sys.platform != "linux":
        return subprocess.Popen(
            [sys.executable, MANAGE, *words], cwd=ROOT, env=environment, stdin=stdin, stdout=stdout, stderr=stderr
        )
    request = {
        "program": [MANAGE, *words],
        "environment": dict(environment),
        "folder": str(ROOT),
        "umask": _umask(),
        "ignored": [number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN],
        "own_mark": own_mark,
    }
    news, status = os.pipe()
    files = [each if isinstance(each, int) else each.fileno() for each in (stdin, stdout, stderr)]
    socket.send_fds(_forks(), [json.dumps(request).encode()], [*files, status])
    os.close(status)
    return WarmProcess(news)


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def run(
    *words: str, environment: Mapping[str, str], typed: str = "", timeout: float = 120
) -> "subprocess.CompletedProcess[str]":
    """`manage.py` with these words, to its end; not in a terminal, as for `subprocess.run`."""
    with contextlib.ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(tempfile.TemporaryFile("w+", newline="")) for _ in range(3))
        stdin.write(typed)
        stdin.seek(0)
        process = start(*words, environment=environment, stdin=stdin, stdout=stdout, stderr=stderr)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        for written in (stdout, stderr):
            written.seek(0)
        return subprocess.CompletedProcess(["manage.py", *words], status, stdout.read(), stderr.read())


@cache
def _forks() -> socket.socket:
    """Where to ask for a fork. The process that forks ends with this one, also if it is killed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.warm_forks", str(theirs.fileno())],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **_ROOM},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait)
    atexit.register(process.terminate)
    return ours
