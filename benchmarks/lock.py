"""The repository lock beside redis-py's Lock and python-redis-lock, on one Valkey in one run.

    make bench-lock

Each number is measured for all three with the same work. The last column is ours divided by redis-py's.
"""

import logging
import math
import multiprocessing
import os
import random
import signal
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import redis
import redis_lock
from django.conf import settings
from redis.lock import Lock as RedisPyLock
from rich.console import Console
from rich.table import Table
from rq import Queue
from rq.serializers import JSONSerializer

from docora.processes import valkey
from docora.processes.worker import Worker
from repositories.base import connections
from repositories.repo_lock import lock_status, repo_lock

WORK = 0.02
WAITERS = 8
PATIENCE = 5
KEY = "owner/repo"
_FORK = multiprocessing.get_context("fork")

MakeLock = Callable[[str], AbstractContextManager[object]]


@dataclass
class Contender:
    name: str
    make: Callable[[], MakeLock]
    samples: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


def _ours() -> MakeLock:
    return lambda who: repo_lock(KEY, job_id=who, wait=60)


def _redis_py() -> MakeLock:
    client = connections.connect()
    return lambda who: RedisPyLock(client, "redis-py", timeout=120)


def _python_redis_lock() -> MakeLock:
    client = connections.connect(timeout=180)
    return lambda who: redis_lock.Lock(client, "python-redis-lock", expire=120)


@dataclass(frozen=True)
class Turn:
    """When a process came, got the lock and gave it back, by the machine's one clock."""

    came: float
    got: float
    left: float


class Player:
    """A process of its own that takes the lock once, when told to."""

    def __init__(self, contender: Contender, name: str, hold: float) -> None:
        self._pipe, theirs = _FORK.Pipe()
        self.process: BaseProcess = _FORK.Process(target=_play, args=(contender.make, name, hold, theirs))
        self.process.start()
        self._pipe.recv()

    def come(self) -> None:
        self._pipe.send("come")
        self._pipe.recv()

    def has_it(self) -> None:
        self._pipe.recv()

    def go(self) -> None:
        self._pipe.send("go")

    def is_done_within(self, seconds: float) -> bool:
        return self._pipe.poll(seconds)

    def send(self, number: signal.Signals) -> None:
        if self.process.pid and self.process.is_alive():
            os.kill(self.process.pid, number)

    def turn(self) -> Turn:
        turn: Turn = self._pipe.recv()
        self.process.join()
        return turn


def _play(make: Callable[[], MakeLock], name: str, hold: float, pipe: Connection) -> None:
    lock = make()
    pipe.send("ready")
    pipe.recv()
    pipe.send("coming")
    came = time.monotonic()
    with lock(name):
        got = time.monotonic()
        if hold:
            time.sleep(hold)
        else:
            pipe.send("has it")
            pipe.recv()
        left = time.monotonic()
    pipe.send(Turn(came, got, left))


@contextmanager
def _waiting_line(contender: Contender, length: int) -> Iterator[tuple[Player, list[Player]]]:
    """A holder, and as many as wanted who wait, having come in order."""
    holder = Player(contender, "holder", 0)
    waiters = [Player(contender, str(number), WORK) for number in range(length)]
    holder.come()
    holder.has_it()
    for waiter in waiters:
        waiter.come()
        time.sleep(0.06)  # for a busy machine to let it stand in line before the next one comes
    time.sleep(random.uniform(0.1, 0.3))  # noqa: S311  so that no poll happens to fall on the release
    yield holder, waiters


def uncontended(contender: Contender, times: int = 50) -> None:
    lock = contender.make()
    started = time.perf_counter()
    for _ in range(times):
        with lock("alone"):
            pass
    contender.samples["alone"].append((time.perf_counter() - started) / times * 1e6)


def one_waiter(contender: Contender) -> None:
    with _waiting_line(contender, 1) as (holder, (waiter,)):
        holder.go()
    contender.samples["one waiter"].append((waiter.turn().got - holder.turn().left) * 1e3)


def many_waiters(contender: Contender) -> None:
    with _waiting_line(contender, WAITERS) as (holder, waiters):
        holder.go()
    turns = [waiter.turn() for waiter in waiters]
    served = sorted([holder.turn(), *turns], key=lambda turn: turn.got)
    contender.samples["many waiters"] += [(after.got - before.left) * 1e3 for before, after in pairwise(served)]
    contender.samples["inversions"].append(sum(first.got > second.got for first, second in combinations(turns, 2)))
    contender.samples["makespan"].append((served[-1].left - served[0].left) / (WAITERS * WORK))


def commands_while_waiting(contender: Contender, seconds: float = 4) -> None:
    client = connections.connect()
    with _waiting_line(contender, WAITERS) as (holder, waiters):
        time.sleep(0.5)
        before = _commands(client)
        time.sleep(seconds)
        asked = _commands(client) - before - 1
        holder.go()
    for player in (holder, *waiters):
        player.turn()
    contender.samples["commands"].append(asked / seconds)


def next_in_line(contender: Contender, number: signal.Signals) -> None:
    """The oldest waiter is gone when its turn comes: how long until the next one has the lock?"""
    with _waiting_line(contender, 2) as (holder, (first, second)):
        first.send(number)
        time.sleep(0.05)
        holder.go()
    left = holder.turn().left
    pause = second.turn().got - left if second.is_done_within(PATIENCE) else math.inf
    contender.samples[number.name].append(pause * 1e3)
    first.send(signal.SIGKILL)
    second.send(signal.SIGKILL)


def hold_for_ever() -> None:
    """The job whose work horse is killed."""
    with repo_lock(KEY, job_id="killed"):
        time.sleep(600)


def _work() -> None:
    logging.disable()
    connection = connections.connect()
    queue = Queue("snapshots", connection=connection, serializer=JSONSerializer)
    Worker([queue], connection=connection, serializer=JSONSerializer).work(logging_level="CRITICAL")


def killed_horse(contender: Contender) -> None:
    """Only ours is told by the worker; the others' locks wait for their TTL."""
    queue = Queue("snapshots", connection=connections.connect(), serializer=JSONSerializer)
    settings.JOB_FUNCTIONS = ("benchmarks.lock.hold_for_ever",)
    queue.enqueue_call("benchmarks.lock.hold_for_ever", job_id="killed", result_ttl=0)
    worker = _FORK.Process(target=_work)
    worker.start()
    while not (held := lock_status()):
        time.sleep(0.01)
    waiter = Player(contender, "waiter", WORK)
    waiter.come()
    time.sleep(0.3)
    killed = time.monotonic()
    os.kill(held[0].holder.pid, signal.SIGKILL)
    contender.samples["killed horse"].append((waiter.turn().got - killed) * 1e3)
    worker.terminate()
    worker.join()


def _p99(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100, method="inclusive")[98]


def _commands(client: redis.Redis) -> int:
    info: dict[str, Any] = client.info("stats")
    return int(info["total_commands_processed"])


@dataclass(frozen=True)
class Goal:
    """What ours must not exceed: a value, or a multiple of redis-py's."""

    limit: float
    is_ratio: bool = False

    def __str__(self) -> str:
        return f"≤ {self.limit:.3g}{' times' if self.is_ratio else ''}"

    def is_reached(self, ours: float, theirs: float | None) -> bool:
        return ours <= (self.limit * (theirs or 0) if self.is_ratio else self.limit)


@dataclass(frozen=True)
class Row:
    name: str
    samples: str
    summary: Callable[[list[float]], float]
    goal: Goal | None = None

    def number(self, contender: Contender) -> float | None:
        samples = contender.samples[self.samples]
        return self.summary(samples) if samples else None


ROWS = [
    Row("uncontended acquire + release, µs", "alone", statistics.median, Goal(3, is_ratio=True)),
    Row("hand-off to 1 waiter, p50, ms", "one waiter", statistics.median, Goal(0.1, is_ratio=True)),
    Row("hand-off to 1 waiter, p99, ms", "one waiter", _p99),
    Row(f"hand-off among {WAITERS}, p50, ms", "many waiters", statistics.median),
    Row(f"hand-off among {WAITERS}, p99, ms", "many waiters", _p99, Goal(1 / 3, is_ratio=True)),
    Row("order inversions, of 28", "inversions", statistics.mean, Goal(0)),
    Row("makespan / ideal", "makespan", statistics.median, Goal(1.2)),
    Row(f"commands/s while {WAITERS} wait", "commands", statistics.mean, Goal(20)),
    Row("next in line killed, ms", "SIGKILL", statistics.median, Goal(50)),
    Row("next in line frozen, ms", "SIGSTOP", statistics.median),
    Row("killed work horse, lock free after, ms", "killed horse", max, Goal(1000)),
]


def _measure() -> list[Contender]:
    """In turns, so that a noisy moment hits all three."""
    ours = Contender("repo_lock", _ours)
    contenders = [ours, Contender("redis-py Lock", _redis_py), Contender("python-redis-lock", _python_redis_lock)]
    plan: list[tuple[int, Callable[[Contender], None]]] = [
        (40, uncontended),
        (25, one_waiter),
        (8, many_waiters),
        (1, commands_while_waiting),
        (3, partial(next_in_line, number=signal.SIGKILL)),
        (1, partial(next_in_line, number=signal.SIGSTOP)),
    ]
    for rounds, measure in plan:
        for _ in range(rounds):
            for contender in contenders:
                measure(contender)
    killed_horse(ours)
    return contenders


def _report(contenders: list[Contender]) -> None:
    table = Table("", *(contender.name for contender in contenders), "ours / redis-py's", "goal", "")
    for row in ROWS:
        numbers = [row.number(contender) for contender in contenders]
        ours, theirs = numbers[0] or 0.0, numbers[1]
        ratio = f"{ours / theirs:.2f}" if theirs else ""
        verdict = "" if row.goal is None else "reached" if row.goal.is_reached(ours, theirs) else "MISSED"
        table.add_row(row.name, *map(_cell, numbers), ratio, str(row.goal or ""), verdict)
    console = Console(width=150)
    console.print(table)
    console.print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}. With more load than cores, it measures the load."
    )


def _cell(number: float | None) -> str:
    if number is None:
        return "its TTL"
    if number == math.inf:
        return f"> {PATIENCE * 1000:,}"
    return f"{number:.2f}" if number < 10 else f"{number:,.0f}"


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "docora.settings"
    with tempfile.TemporaryDirectory(prefix="docora-bench-") as home:
        os.environ["DOCORA_DATA_DIR"] = home
        os.environ.pop("REDIS_URL", None)
        server = valkey.start(Path(home) / "valkey" / "valkey.sock", persistent=False)
        try:
            logging.disable()
            _report(_measure())
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
