"""Deliveries per second, time until all apps are in sync, and memory; beside the raw HTTP client in the same run.

    make bench-delivery

Everything is real: git over HTTP, SQLite, Valkey, workers, and receivers in processes of their own.
"""

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import aiohttp
import django
from rich.console import Console
from rich.table import Table

from docora.demo.bare import Content
from docora.demo.githost import GitHost, HostedRepository
from docora.processes import valkey

ROOT = Path(__file__).parent.parent
SMALL = 2_000
LARGE = 16_000
APPS = 50
REPOSITORIES = 20
WORKERS = 5
HANGING = 5
ROUNDS = 3
LANES = 8
PATIENCE = 60
Files = dict[str, Content]
BODY = b'{"file":{"content":"' + b"x" * 700 + b'"}}'

# A fresh process that does nothing else: prints the peak of its memory in KiB. Not ru_maxrss, which on Linux begins
# with the parent's.
_MEASURE = """
import re, django
from pathlib import Path
django.setup()
from snapshots.delivery import tell
while tell.deliver({watch}, job_id="bench") is not None:
    pass
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="docora-bench-") as folder, stage(Path(folder)) as host:
        table = Table("what", "measured: best (median)", "to reach", "in the same run")
        for row in _measurements(Bench(host)):
            table.add_row(*row)
        Console(width=130).print(table)


@contextmanager
def stage(folder: Path) -> Iterator[GitHost]:
    """Docora in a folder of its own, with an embedded Valkey and a git host."""
    with GitHost(folder / "host") as host:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "docora.settings",
            "DOCORA_DATA_DIR": str(folder),
            "DOCORA_GIT_HOSTS": host.address,
            "DOCORA_LOG_LEVEL": "ERROR",
            "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        }
        django.setup()
        from django.conf import settings
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        store = valkey.start(settings.REDIS_SOCKET, persistent=False)
        try:
            yield host
        finally:
            store.terminate()
            store.wait(10)


@contextmanager
def receiver(delay_ms: int) -> Iterator[str]:
    with _process("-m", "benchmarks.fast_receiver", str(delay_ms)) as process:
        assert process.stdout  # noqa: S101  for the type
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"


@contextmanager
def _process(*words: str) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _measurements(bench: "Bench") -> Iterator[tuple[str, str, str, str]]:
    for delay, goal in ((0, 1500), (20, 350)):
        with receiver(delay) as url:
            ours, raw = zip(*((bench.rate(url), asyncio.run(raw_rate(url))) for _ in range(ROUNDS)), strict=True)
        what = f"{SMALL} small files, receiver at {delay} ms, {LANES} in flight"
        yield what, f"{max(ours):.0f} /s ({median(ours):.0f} /s)", f"≥ {goal} /s", f"aiohttp alone: {max(raw):.0f} /s"
    with receiver(0) as url:
        took, idle = bench.until_synced(url, apps=APPS, repositories=1)
        yield f"{APPS} apps, one small repository, {WORKERS} workers", took, "≤ 3 s", idle
        took, idle = bench.until_synced(url, apps=1, repositories=REPOSITORIES)
        yield f"{REPOSITORIES} repositories, 1 app each, {WORKERS} workers", took, "≤ 2 s", idle
        first, then = bench.beside_hanging(url)
        what = f"one app beside {HANGING} that hang, {WORKERS} workers"
        yield f"{what}: first sync", f"{first:.1f} s", "≤ 6 s", ""
        yield f"{what}: a change afterwards", f"{then:.1f} s", "at once", ""
        yield f"memory of the job, {LARGE} files", bench.peak_memory(url, small_files(LARGE)), "≤ 120 MB", ""
        yield "memory of the job, one text of 200 MB", bench.peak_memory(url, large_text()), "≤ 120 MB", ""


def small_files(count: int) -> Files:
    return {f"folder-{n % 50}/file-{n}.md": f"# File {n}\n" + "text " * 100 for n in range(count)}


def large_text() -> Files:
    return {"large.txt": b"So long, and thanks for all the fish.\n" * 5_263_158}


class Bench:
    def __init__(self, host: GitHost) -> None:
        self._host = host
        self._made = 0

    def rate(self, url: str) -> float:
        watch_id = self._snapshotted(url, small_files(SMALL))
        started = time.perf_counter()
        deliver(watch_id)
        return SMALL / (time.perf_counter() - started)

    def peak_memory(self, url: str, files: Files) -> str:
        script = _MEASURE.format(watch=self._snapshotted(url, files))
        result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
        return f"{int(result.stdout) / 1024:.0f} MB"

    def until_synced(self, url: str, *, apps: int, repositories: int) -> tuple[str, str]:
        """The best of some rounds and their median; and the best that as many empty jobs cost between them."""
        with _workers():
            rounds = [self._time_until_synced(url, apps, repositories) for _ in range(ROUNDS)]
        took, idle = zip(*rounds, strict=True)
        return f"{min(took):.1f} s ({median(took):.1f} s)", f"as many empty jobs: {min(idle):.1f} s"

    def _time_until_synced(self, url: str, apps: int, repositories: int) -> tuple[float, float]:
        """From the moment when all have watched, with idle workers; and what the queue itself costs."""
        from repositories import watches
        from repositories.models import Repository

        idle = _time_of_empty_jobs(apps * repositories + repositories)
        remotes = [self._repository(small_files(10)) for _ in range(repositories)]
        ids = [pk for remote in remotes for pk in self._watch(url, remote, apps)]
        started = time.perf_counter()
        for repository in Repository.objects.filter(watches__in=ids).distinct():
            watches.request_snapshot(repository)
        _wait(lambda: _synced(ids) == len(ids))
        return time.perf_counter() - started, idle

    def beside_hanging(self, url: str) -> tuple[float, float]:
        """While every worker waits for an endpoint that hangs: the first sync of another app, and a change of it."""
        from repositories.base import queue
        from repositories.models import Watch

        remote = self._repository(small_files(10))
        with hanging_endpoint() as hanging, _workers(), _process("manage.py", "rqworker", queue.SLOW_DELIVERIES):
            held_up = self._watch(hanging, self._repository(small_files(10)), HANGING)
            _look_at(held_up[0])
            _wait(lambda: Watch.objects.filter(pk__in=held_up, status="scanning").count() == HANGING)
            (healthy,) = self._watch(url, remote, 1)
            first = _time_until_told(healthy, remote)
            remote.commit({"folder-1/file-1.md": "changed"})
            return first, _time_until_told(healthy, remote)

    def _snapshotted(self, url: str, files: Files) -> int:
        """A watch whose repository has been looked at, and nothing delivered."""
        from repositories.base import queue
        from repositories.models import Watch
        from snapshots import look

        (watch_id,) = self._watch(url, self._repository(files), 1)
        look.take_snapshot(Watch.objects.get(pk=watch_id).repository_id, job_id="bench")
        queue.connection().flushall()
        return watch_id

    def _watch(self, url: str, remote: HostedRepository, apps: int) -> list[int]:
        """Watches of a repository, not yet asked for."""
        from django.db import transaction

        from repositories import accounts, watches
        from repositories.models import App

        made = []
        for _ in range(apps):
            app = App.objects.get(public_id=accounts.onboard("bench", url).app_id)
            with transaction.atomic():
                made.append(watches.watch(app, remote.url).pk)
                transaction.get_connection().run_on_commit.clear()
        return made

    def _repository(self, files: Files) -> HostedRepository:
        self._made += 1
        repository = self._host.create(f"bench/repository-{self._made}")
        repository.commit(files)
        return repository


@contextmanager
def hanging_endpoint() -> Iterator[str]:
    """The kernel accepts the connections, and nobody ever answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def _look_at(watch_id: int) -> None:
    from repositories import watches
    from repositories.models import Watch

    watches.request_snapshot(Watch.objects.get(pk=watch_id).repository)


def _time_until_told(watch_id: int, remote: HostedRepository) -> float:
    from repositories.models import Watch

    tip = remote.tip()
    started = time.perf_counter()
    _look_at(watch_id)
    _wait(lambda: Watch.objects.get(pk=watch_id).synced_commit == tip)
    return time.perf_counter() - started


def deliver(watch_id: int) -> None:
    from repositories.models import Watch
    from snapshots.delivery import tell

    while tell.deliver(watch_id, job_id="bench") is not None:
        pass
    assert Watch.objects.get(pk=watch_id).status == "synced"  # noqa: S101  a failure is no measurement


async def raw_rate(url: str) -> float:
    async def lane(session: aiohttp.ClientSession) -> None:
        for _ in range(SMALL // LANES):
            async with session.post(f"{url}/create", data=BODY) as response:
                await response.read()

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=LANES)) as session:
        started = time.perf_counter()
        await asyncio.gather(*(lane(session) for _ in range(LANES)))
        return SMALL / (time.perf_counter() - started)


@contextmanager
def _workers() -> Iterator[None]:
    from repositories.base import queue

    with ExitStack() as stack:
        for _ in range(WORKERS):
            stack.enter_context(_process("manage.py", "rqworker", "snapshots", "deliveries"))
        _wait(lambda: int(queue.connection().scard("rq:workers")) >= WORKERS)
        yield


def _time_of_empty_jobs(count: int) -> float:
    """What the queue itself costs: there is no such repository."""
    from repositories.base import queue

    started = time.perf_counter()
    for number in range(count):
        queue.enqueue(queue.DELIVERIES, "snapshots.jobs.announce_recovery", -1, job_id=f"empty-{number}", timeout=60)
    _wait(lambda: not any(queue.is_alive(f"empty-{number}") for number in range(count)))
    return time.perf_counter() - started


def _synced(watch_ids: list[int]) -> int:
    """In plain SQL, for it is asked often, on the cores that are measured."""
    from django.db import connection

    question = "SELECT COUNT(*) FROM repositories_watch WHERE status = 'synced' AND id BETWEEN %s AND %s"
    with connection.cursor() as cursor:
        cursor.execute(question, [watch_ids[0], watch_ids[-1]])
        return int(cursor.fetchone()[0])


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {PATIENCE} s")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
