"""Runs all of Docora on one host: embedded Valkey, web, workers and scheduler.

- A child that dies is started again after a pause that grows from 1 s to 60 s.
- A stop ends the scheduler and the web first, then the workers, whose jobs get some seconds to finish and are
  put back on their queues otherwise, and Valkey last. Nothing is left running.
- A supervisor that is killed is survived by its guard, which ends the children; the next supervisor ends what
  both left, and puts back what they were working on.

Not guaranteed: when supervisor and guard are killed at the same moment, the children run until the next
start.
"""

import http.client
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from docora.env import BASE_DIR, WEB_THREADS
from docora.processes import interrupted, marks, valkey
from docora.processes.children import Child, Program
from docora.processes.preflight import StartError
from docora.processes.signals import StopRequests

LOOK_INTERVAL = 0.5
START_PATIENCE = 120.0
STORE_PATIENCE = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, and where."""

    data: Path
    port: int
    host: str
    """The name under which the web answers; a request by address alone would be refused."""
    redis_url: str
    embedded_socket: Path | None
    web_processes: int
    workers: dict[str, int]
    """How many workers each queue gets."""
    stop_grace: float
    run: str = field(default_factory=lambda: secrets.token_hex(4))

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store_scope(self) -> str:
        return f"{self.run}.valkey"


class Supervisor:
    def __init__(self, plan: Plan, listener: socket.socket, stop: StopRequests, say: Callable[[str], None]) -> None:
        self._plan, self._listener, self._stop, self._say = plan, listener, stop, say
        self._life_line, self._life_line_end = os.pipe()
        # Without retries, which would hold up everything else: what fails is done at the next look.
        self._redis = redis.Redis.from_url(plan.redis_url, socket_timeout=5, retry=Retry(NoBackoff(), 0))
        self._interrupted: set[str] = set()
        self._requests_seen = 0
        self._guard = self._child(self._guard_program(), run=f"guard-of-{plan.run}")
        self._store = self._child(_store_program(plan.embedded_socket)) if plan.embedded_socket else None
        self._doors = [self._child(self._web_program()), self._child(_scheduler_program())]
        self._workers = [self._child(program) for program in _worker_programs(plan.workers)]

    @property
    def children(self) -> list[Child]:
        stores = [self._store] if self._store else []
        return [*stores, *self._doors, *self._workers, self._guard]

    def start(self, *, earlier_run: str | None = None) -> None:
        """Start everything; the jobs of an earlier run, whose processes are gone, are put back."""
        self._plan.logs.mkdir(mode=0o700, exist_ok=True)
        self._guard.start()
        if self._store and self._plan.embedded_socket:
            self._start_store(self._store, self._plan.embedded_socket)
        if earlier_run:
            self._put_everything_back(earlier_run)
        for child in (*self._doors, *self._workers):
            child.start()

    def wait_until_ready(self) -> bool:
        """Whether all of it answers; False when a stop was asked for in the meantime."""
        deadline = time.monotonic() + START_PATIENCE
        told: list[str] = []
        while not self._stop:
            self._look_after_children()
            missing = list(self._missing())
            if not missing:
                return True
            if time.monotonic() > deadline:
                raise StartError(f"{missing[0]} did not start within {START_PATIENCE:g} s: see {self._plan.logs}")
            if missing != told:
                self._say(f"  waiting for {', '.join(missing)}")
                told = missing
            self._stop.wait(0.1)
        return False

    def watch(self) -> None:
        """Start again what dies, until a stop is asked for."""
        while not self._stop:
            self._look_after_children()
            self._stop.wait(LOOK_INTERVAL)

    def stop(self) -> None:
        """End everything, in an order that loses nothing; a further signal does not wait for running jobs."""
        self._requests_seen = self._stop.count
        self._end(self._doors, "the requests that are being answered")
        self._listener.close()
        self._end(self._workers, "the jobs that are running")
        marks.kill(self._plan.run, sparing=self._plan.store_scope)
        if not self._store or self._store.is_running():
            self._put_everything_back(self._plan.run)
        if self._store:
            self._end_store(self._store)
        marks.kill(self._plan.run)
        os.close(self._life_line_end)
        if self._guard.process:
            self._guard.process.wait()

    def _start_store(self, store: Child, unix_socket: Path) -> None:
        try:
            valkey.prepare_folder(unix_socket)
            valkey.shut_down_stale(unix_socket)
            valkey.wait_until_it_answers(store.start(), unix_socket)
        except (valkey.ValkeyError, OSError) as error:
            raise StartError(f"the embedded Valkey does not start: {error}; see {store.log}") from None

    def _end_store(self, store: Child) -> None:
        if store.process and store.is_running():
            store.process.terminate()
            try:
                store.process.wait(STORE_PATIENCE)
            except subprocess.TimeoutExpired:
                self._say(f"  {store.name} does not end: killing it")

    def _look_after_children(self) -> None:
        for child in self.children:
            child.keep_log_bounded()
            if child.has_just_ended():
                self._bury(child)
            if child.is_due():
                child.start()
        self._put_back_interrupted()

    def _bury(self, child: Child) -> None:
        """Its horses and web workers would go on as orphans, beside the ones that are started now."""
        marks.kill(child.mark)
        self._interrupted.add(child.mark)
        how = child.how_it_ended()
        self._say(f"{child.name} {how}; starting again in {child.plan_next_start():g} s (see {child.log})")

    def _put_back_interrupted(self) -> None:
        try:
            for mark in list(self._interrupted):
                self._tell_of(interrupted.put_back(mark, self._redis))
                self._interrupted.discard(mark)
        except redis.RedisError:  # Valkey itself may be the one that died: again at the next look
            return

    def _put_everything_back(self, run: str) -> None:
        try:
            self._tell_of(interrupted.put_back(run, self._redis))
            if self._store:  # no other host has workers on an embedded Valkey
                self._tell_of(interrupted.put_back_taken(self._redis))
        except redis.RedisError as error:
            self._say(f"interrupted jobs could not be put back, the scheduler will ask for them again: {error}")

    def _tell_of(self, jobs: list[str]) -> None:
        if jobs:
            self._say(f"  interrupted, put back on their queue: {', '.join(jobs)}")

    def _missing(self) -> Iterator[str]:
        if not self._web_is_healthy():
            yield "web"
        for queue, number in self._plan.workers.items():
            if self._count_workers(queue) < number:
                yield f"{queue} workers"

    def _web_is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._plan.port, timeout=0.5)
        try:
            connection.request("GET", "/health", headers={"Host": self._plan.host, "X-Forwarded-Proto": "https"})
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _count_workers(self, queue: str) -> int:
        try:
            return interrupted.count_workers(queue, self._plan.run, self._redis)
        except redis.RedisError:
            return 0

    def _end(self, children: Iterable[Child], what_they_do: str) -> None:
        running = [child for child in children if child.is_running()]
        for child in running:
            child.terminate()
        asked = time.monotonic()
        told = False
        while any(child.is_running() for child in running) and self._stop.count == self._requests_seen:
            waited = time.monotonic() - asked
            if waited > self._plan.stop_grace:
                return
            if waited > 3 and not told:
                told = True
                self._say(f"  waiting up to {self._plan.stop_grace:g} s for {what_they_do}; Ctrl-C does not wait")
            self._stop.wait(0.1)

    def _child(self, program: Program, *, run: str | None = None) -> Child:
        return Child(program=program, run=run or self._plan.run, log=self._plan.logs / f"{program.name}.log")

    def _guard_program(self) -> Program:
        words = f"-m docora.processes.guard {self._life_line} {self._plan.run} {self._plan.store_scope}"
        return Program("guard", lambda _mark: [sys.executable, *words.split()], inherits=(self._life_line,))

    def _web_program(self) -> Program:
        handle = self._listener.fileno()
        words = (
            # Preloaded, imported once and then forked: half the time to start, and less memory.
            f"-m gunicorn docora.wsgi --config python:docora.processes.web --preload --bind fd://{handle}"
            # A path of git may have 4 KB, each byte of it three characters in a URL: as long as gunicorn allows.
            f" --workers {self._plan.web_processes} --threads {WEB_THREADS} --limit-request-line 8190"
            f" --graceful-timeout {self._plan.stop_grace:.0f} --no-control-socket --access-logfile -"
        )
        return Program("web", lambda _mark: [sys.executable, *words.split()], inherits=(handle,))


def _store_program(unix_socket: Path) -> Program:
    return Program("valkey", lambda _mark: valkey.command(unix_socket))


def _scheduler_program() -> Program:
    return Program("scheduler", lambda _mark: _manage("scheduler"))


def _worker_programs(workers: dict[str, int]) -> Iterator[Program]:
    for queue, number in workers.items():
        for index in range(1, number + 1):
            yield Program(f"{queue}-{index}", _worker_command(queue))


def _worker_command(queue: str) -> Callable[[str], list[str]]:
    return lambda mark: _manage("rqworker", queue, "--name", mark)


def _manage(*words: str) -> list[str]:
    # `migrate` has just run the checks: a dozen processes need not repeat them.
    return [sys.executable, str(BASE_DIR / "manage.py"), *words, "--skip-checks"]
