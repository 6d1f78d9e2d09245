"""Processes that hold and wait for locks, and the journal in which their gits write what they do.

The git of this cast appends its name to the journal every few milliseconds for as long as it runs, so a
killed one simply stops. Two critical sections overlap if and only if the names of two gits are entangled.
"""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing.process import BaseProcess
from pathlib import Path

import redis
from django.conf import settings
from django.db import connections as databases
from django.utils.module_loading import import_string
from rq import Queue
from rq.serializers import JSONSerializer

from repositories.base import connections
from repositories.repo_lock import LockLostError, LockTimeoutError, lock_status, repo_lock
from repositories.repo_lock._server import LockServer, Names, new_token

KEY = "owner/repo"
LOCK = "docora:repo-lock:{owner/repo}"
LogLines = Callable[[int], list[str]]
_FORK = multiprocessing.get_context("fork")
_GIT = 'end=$(($(date +%s%N) + $2)); while [ $(date +%s%N) -lt $end ]; do echo "$1 $$" >> "$3"; sleep 0.01; done'

OK, LOST, TIMED_OUT = 0, 10, 11


@dataclass
class Cast:
    """The processes of one test, and what they have written down."""

    folder: Path
    server: redis.Redis
    processes: list[BaseProcess] = field(default_factory=list)

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def start(self, function: Callable[..., None], *args: object, **kwargs: object) -> BaseProcess:
        # An earlier test may have left a connection to the database, which a fork must neither use nor close.
        databases.close_all()
        process = _FORK.Process(target=_in_own_group, args=(function, *args), kwargs=kwargs)
        process.start()
        self.processes.append(process)
        return process

    def worker(self, job: str, *, seconds: float = 0.3, ttl: float = 60, wait: float = 60) -> BaseProcess:
        return self.start(hold_with_a_git, self.journal, job, seconds=seconds, ttl=ttl, wait=wait)

    def holder(self, job: str, *, seconds: float, ttl: float = 60) -> BaseProcess:
        """A worker whose git is running already."""
        process = self.worker(job, seconds=seconds, ttl=ttl)
        self.until(lambda: job in self.entries())
        return process

    def waiter(self, job: str, **options: float) -> BaseProcess:
        """A worker that stands in line already."""
        process = self.worker(job, **options)
        self.until(lambda: job in waiters())
        return process

    def entries(self) -> list[str]:
        """The jobs whose gits have written, in order, each once per run."""
        return [line.split()[0] for line, _ in groupby(self._lines())]

    def _lines(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def until(self, condition: Callable[[], object], patience: float = 20) -> float:
        """The seconds that it took."""
        started = time.monotonic()
        while not condition():
            assert time.monotonic() - started < patience, f"it did not happen; the journal says {self.entries()}"
            time.sleep(0.01)
        return time.monotonic() - started

    def assert_no_overlap(self) -> None:
        gits = [git for git, _ in groupby(self._lines())]
        assert len(gits) == len(set(gits)), f"critical sections overlap: {gits}"

    def assert_nothing_is_left(self) -> None:
        """But fences, which expire, what is counted for the operator, and what RQ keeps of its own."""
        ours = {key.decode() for key in self.server.scan_iter("docora:*")} - {"docora:metrics", "docora:disks"}
        assert {key for key in ours if not key.endswith(":fence")} == set()
        assert all(self.server.ttl(key) > 0 for key in ours)
        assert [path.name for path in (self.folder / ".locks").glob("*")] == []

    def end(self) -> None:
        for process in self.processes:
            assert process.pid
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.join(10)


def _in_own_group(function: Callable[..., None], *args: object, **kwargs: object) -> None:
    """So that what it started, such as a worker's scheduler, can be ended even after it was killed."""
    os.setpgrp()
    function(*args, **kwargs)


def work(*, burst: bool = False) -> None:
    """What `manage.py rqworker snapshots` does."""
    connection = connections.connect()
    queue = Queue("snapshots", connection=connection, serializer=JSONSerializer)
    worker = import_string(settings.RQ["WORKER_CLASS"])(
        [queue], connection=connection, serializer=JSONSerializer, worker_ttl=30
    )
    worker.work(burst=burst, with_scheduler=True, logging_level="ERROR")


def send(process: BaseProcess, number: signal.Signals) -> None:
    assert process.pid
    os.kill(process.pid, number)


def waiters() -> tuple[str, ...]:
    with contextlib.suppress(redis.RedisError):
        for status in lock_status():
            if status.key == KEY:
                return status.waiters
    return ()


def is_held(key: str = KEY) -> bool:
    return any(status.key == key for status in lock_status())


def hold_briefly(job_id: str, order: list[str], wait: float = 10) -> int:
    """Take the lock, note it in `order`, give it back; returns the fence."""
    with repo_lock(KEY, job_id=job_id, wait=wait) as held:
        order.append(job_id)
        return held.fence


def take_without_renewing(job_id: str, ttl: float = 60) -> str:
    """Hold the lock as a process does that has just died; returns its token."""
    token = new_token(job_id)
    LockServer(timeout=2).acquire(Names(KEY), token, ttl=ttl, wait=0)
    return token


@contextlib.contextmanager
def running_git(job: str, seconds: float, journal: Path, fd: int) -> Iterator["subprocess.Popen[bytes]"]:
    arguments = ["sh", "-c", _GIT, "git", job, str(int(seconds * 1e9)), str(journal)]
    process = subprocess.Popen(arguments, start_new_session=True, pass_fds=(fd,))
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_git_under_lock(journal: Path, job: str, *, seconds: float, ttl: float, wait: float) -> None:
    """As every service does: take the lock, let git inherit and guard it, then write with the fence."""
    with repo_lock(KEY, job_id=job, ttl=ttl, wait=wait) as held, contextlib.ExitStack() as stack:
        with held.inherit() as fd:
            git = stack.enter_context(running_git(job, seconds, journal, fd))
        with held.guarding(git.pid):
            git.wait()
        held.check()
        write_result(journal.parent, job, held.fence)


def write_result(folder: Path, job: str, fence: int) -> None:
    with (folder / "results").open("a") as results:
        results.write(f"{fence} {job}\n")


def results(folder: Path) -> list[tuple[int, str]]:
    lines = (folder / "results").read_text().split() if (folder / "results").exists() else []
    return list(zip(map(int, lines[::2]), lines[1::2], strict=True))


def hold_with_a_git(journal: Path, job: str, *, seconds: float, ttl: float, wait: float) -> None:
    try:
        run_git_under_lock(journal, job, seconds=seconds, ttl=ttl, wait=wait)
    except LockLostError:
        os._exit(LOST)
    except LockTimeoutError:
        os._exit(TIMED_OUT)
