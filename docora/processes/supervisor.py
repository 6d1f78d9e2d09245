"""Runs all of Docora on one host: embedded Valkey, web, workers and scheduler.

- All children are forks of the supervisor, which has imported what they have in common: they share that memory.
- A child that dies is started again after a pause that grows from 1 s to 60 s.
- A stop ends the scheduler and the web first, then the workers, whose jobs get some seconds to finish and are
  put back on their queues otherwise, and Valkey last. Nothing is left running.
- When the supervisor is killed, Linux kills its children, and theirs, at the same moment. Valkey gets a SIGTERM
  instead, so it ends last and writes what it has. The next supervisor kills what is left, such as a git or, on other
  systems, all of it, and puts back what was interrupted.
"""

import http.client
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis
from django.db import connections
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue, Worker

from docora.env import WEB_THREADS
from docora.processes import interrupted, leftovers, priority, valkey, warm_up, web
from docora.processes.children import Child
from docora.processes.preflight import StartError
from docora.processes.prepared import PreparedCommand
from docora.processes.signals import StopRequests

LOOK_INTERVAL = 0.5
# Seconds that a living worker may need to begin a job that it has taken.
_TAKEN_PATIENCE = 5.0
START_PATIENCE = 120.0
# Of the workers: pages, hooks and Valkey come first where the processor is short.
_NICENESS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run, and where."""

    run: str
    """The mark of this run in the environment of its processes."""
    data: Path
    address: str
    """Where this machine reaches the web server."""
    port: int
    host: str
    """The name under which the web answers; a request by address alone would be refused."""
    redis_url: str
    embedded_socket: Path | None
    web_processes: int
    workers: dict[str, int]
    """How many workers each queue gets."""
    stop_grace: float

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def url(self) -> str:
        return f"http://{f'[{self.address}]' if ':' in self.address else self.address}:{self.port}"


class Supervisor:
    def __init__(self, plan: Plan, listener: socket.socket, stop: StopRequests, say: Callable[[str], None]) -> None:
        self._plan, self._listener, self._stop, self._say = plan, listener, stop, say
        # Without retries, which would hold up everything else: what fails is done at the next look.
        self._redis = redis.Redis.from_url(plan.redis_url, socket_timeout=5, retry=Retry(NoBackoff(), 0))
        self._interrupted: set[str] = set()
        # Jobs that were taken and not begun when a worker had died, by it or by a living one; since when.
        self._taken: dict[str, float] = {}
        self._requests_seen = 0
        self._store = self._make_store(plan.embedded_socket) if plan.embedded_socket else None
        self._web = self._make_child("web", self._serve_web, keeps_listener=True)
        scheduler = PreparedCommand("scheduler")
        self._scheduler = self._make_child("scheduler", lambda _mark: scheduler.run())
        # One queue each: RQ puts back what a killed worker had taken but not begun only if it serves a single queue.
        self._workers = [
            self._make_child(
                f"{queue}-{index}", partial(_work, PreparedCommand("rqworker", queue, "--only", "--without-scheduler"))
            )
            for queue, number in plan.workers.items()
            for index in range(1, number + 1)
        ]

    @property
    def children(self) -> list[Child]:
        stores = [self._store] if self._store else []
        return [*stores, self._web, self._scheduler, *self._workers]

    def start(self, *, earlier_run: str | None) -> None:
        """Start everything; the jobs of an earlier run, whose processes are gone, are put back."""
        self._plan.logs.mkdir(mode=0o700, exist_ok=True)
        if self._store and self._plan.embedded_socket:
            self._start_store(self._store, self._plan.embedded_socket)
        if earlier_run:
            self._put_everything_back(earlier_run)
        for child in (self._web, self._scheduler, *self._workers):
            self._start(child)

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
        self._end([self._web, self._scheduler], "the requests that are being answered")
        self._listener.close()
        self._end(self._workers, "the jobs that are running")
        leftovers.kill(self._plan.run, sparing=valkey.scope(self._plan.run))
        if not self._store or self._store.is_running():
            self._put_everything_back(self._plan.run)
        if self._store:
            self._end_store(self._store)
        leftovers.kill(self._plan.run)

    def _start(self, child: Child) -> None:
        """Nothing stays connected at a fork: two processes on one connection would read each other's answers."""
        self._redis.connection_pool.disconnect()
        connections.close_all()
        child.start()

    def _start_store(self, store: Child, unix_socket: Path) -> None:
        try:
            unix_socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._start(store)
            valkey.wait_until_it_answers(unix_socket, store.exit_status)
        except (valkey.ValkeyError, OSError) as error:
            raise StartError(f"the embedded Valkey does not start: {error}; see {store.log}") from None

    def _end_store(self, store: Child) -> None:
        if store.process:
            store.terminate()
            store.process.join(valkey.STOP_PATIENCE)
            if store.is_running():
                self._say(f"  {store.name} does not end: killing it")

    def _look_after_children(self) -> None:
        for child in self.children:
            child.keep_log_bounded()
            if child.has_just_ended():
                self._clean_up_after(child)
            if child.is_due():
                self._start(child)
        self._put_back_interrupted()

    def _clean_up_after(self, child: Child) -> None:
        """Kill what it left, which would go on beside the process that is started next."""
        leftovers.kill(child.mark, session=child.pid)
        self._interrupted.add(child.mark)
        how = child.how_it_ended()
        self._say(f"{child.name} {how}; starting again in {child.plan_next_start():g} s (see {child.log})")

    def _put_back_interrupted(self) -> None:
        try:
            for mark in list(self._interrupted):
                self._tell_of(interrupted.put_back(mark, self._redis))
                self._taken = dict.fromkeys(interrupted.taken(self._redis), time.monotonic()) | self._taken
                self._interrupted.discard(mark)
            self._put_back_taken()
        except redis.RedisError:  # Valkey itself may be the one that died: again at the next look
            return

    def _put_back_taken(self) -> None:
        """What is still not begun was taken by the worker that has died."""
        died_before = time.monotonic() - _TAKEN_PATIENCE
        if overdue := {job_id for job_id, since in self._taken.items() if since < died_before}:
            self._tell_of(interrupted.put_back_taken(overdue, self._redis))
            self._taken = {job_id: since for job_id, since in self._taken.items() if job_id not in overdue}

    def _put_everything_back(self, run: str) -> None:
        try:
            self._tell_of(interrupted.put_back(run, self._redis))
            if self._store:  # no other host has workers on an embedded Valkey
                self._tell_of(interrupted.put_back_taken(interrupted.taken(self._redis), self._redis))
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
        connection = http.client.HTTPConnection(self._plan.address, self._plan.port, timeout=0.5)
        try:
            connection.request("GET", "/health", headers={"Host": self._plan.host, "X-Forwarded-Proto": "https"})
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _count_workers(self, queue: str) -> int:
        try:
            keys = Worker.all_keys(queue=Queue(queue, connection=self._redis))
        except redis.RedisError:
            return 0
        names = (key.removeprefix(Worker.redis_worker_namespace_prefix) for key in keys)
        return sum(leftovers.is_within(name, self._plan.run) for name in names)

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

    def _make_child(self, name: str, main: Callable[[str], object], *, keeps_listener: bool = False) -> Child:
        return Child(
            name=name,
            run=self._plan.run,
            log=self._plan.logs / f"{name}.log",
            main=main,
            leave_supervisor=partial(self._leave, keeps_listener=keeps_listener),
        )

    def _make_store(self, unix_socket: Path) -> Child:
        store = self._make_child("valkey", lambda _mark: valkey.execute(unix_socket))
        store.ends_with_supervisor_by = signal.SIGTERM
        return store

    def _leave(self, *, keeps_listener: bool) -> None:
        """In a child."""
        self._stop.close()
        if not keeps_listener:  # else the port would stay open until the last worker has ended
            self._listener.close()

    def _serve_web(self, _mark: str) -> None:
        warm_up.for_web()
        web.serve(
            self._listener.fileno(),
            processes=self._plan.web_processes,
            threads=WEB_THREADS,
            stop_grace=self._plan.stop_grace,
        )


def _work(command: PreparedCommand, mark: str) -> None:
    priority.give_way(_NICENESS)
    command.run(name=mark)
