"""Deliveries per second, time until all apps are in sync, and memory; beside the raw HTTP client in the same run.

    make bench-delivery

Everything is real: git over HTTP, SQLite, Valkey, workers, and receivers in processes of their own.
"""

import asyncio
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
SMALL = 2_000
LARGE = 16_000
APPS = 50
REPOSITORIES = 20
WORKERS = 5
LANES = 8
BODY = b'{"file":{"content":"' + b"x" * 700 + b'"}}'


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="docora-bench-") as folder, ExitStack() as stack:
        bench = stack.enter_context(_stage(Path(folder)))
        table = Table("what", "measured", "to reach", "reference in the same run")
        for row in bench.measure():
            table.add_row(*row)
        Console(width=120).print(table)


@contextmanager
def _stage(folder: Path) -> "Iterator[Bench]":
    os.environ |= {
        "DOCORA_DATA_DIR": str(folder),
        "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        "DJANGO_SETTINGS_MODULE": "docora.settings",
        "DOCORA_LOG_LEVEL": "ERROR",
        "ENCRYPTION_KEYS": "KioqKioqKioqKioqKioqKioqKioqKioqKioqKioqKio=",
    }
    from docora.demo.githost import GitHost

    with GitHost(folder / "host") as host:
        os.environ["DOCORA_GIT_HOSTS"] = host.address
        import django

        django.setup()
        from django.conf import settings
        from django.core.management import call_command

        from docora import valkey

        call_command("migrate", verbosity=0)
        store = valkey.start(settings.REDIS_SOCKET, persistent=False)
        try:
            yield Bench(host, folder)
        finally:
            store.terminate()
            store.wait(10)


@contextmanager
def receiver(delay_ms: int) -> Iterator[str]:
    command = [sys.executable, "-m", "benchmarks.fast_receiver", str(delay_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout  # noqa: S101  for the type
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


class Bench:
    def __init__(self, host: Any, folder: Path) -> None:
        self._host = host
        self._folder = folder
        self._number = 0

    def measure(self) -> Iterator[tuple[str, str, str, str]]:
        for delay, goal in ((0, 1500), (20, 350)):
            with receiver(delay) as url:
                ours, raw = self._rate(url), asyncio.run(_raw_rate(url))
            what = f"{SMALL} small files, receiver at {delay} ms"
            yield what, f"{ours:.0f} /s", f"≥ {goal} /s", f"aiohttp alone, {LANES} lanes: {raw:.0f} /s"
        with receiver(0) as url:
            seconds = self._until_synced(lambda: self._watches(url, apps=APPS, repositories=1))
            yield f"{APPS} apps, one small repository, {WORKERS} workers", f"{seconds:.1f} s", "≤ 3 s", ""
            seconds = self._until_synced(lambda: self._watches(url, apps=1, repositories=REPOSITORIES))
            yield f"{REPOSITORIES} repositories × 1 app, {WORKERS} workers", f"{seconds:.1f} s", "≤ 2 s", ""
            yield f"memory of the job, {LARGE} files", f"{self._peak_memory(url):.0f} MB", "≤ 120 MB", ""

    def _repository(self, files: int) -> Any:
        self._number += 1
        repository = self._host.create(f"bench/repository-{self._number}")
        repository.commit({f"folder-{n % 50}/file-{n}.md": f"# File {n}\n" + "text " * 100 for n in range(files)})
        return repository

    def _watch(self, url: str, repository: Any) -> Any:
        from repositories import services
        from repositories.models import App

        credentials = services.onboard(f"app {url}", url)
        app = App.objects.get(public_id=credentials.app_id)
        return services.watch(app, repository.url)

    def _snapshot(self, watch: Any) -> None:
        from repositories import queue
        from snapshots import services

        services.take_snapshot(watch.repository_id, job_id="bench")
        queue.connection().flushall()

    def _rate(self, url: str) -> float:
        watch = self._watch(url, self._repository(SMALL))
        self._snapshot(watch)
        started = time.perf_counter()
        _deliver(watch.pk)
        return SMALL / (time.perf_counter() - started)

    def _peak_memory(self, url: str) -> float:
        """Of a forked process that does nothing but the job, as the worker's work horse does."""
        from django.db import connections

        watch = self._watch(url, self._repository(LARGE))
        connections.close_all()
        command = [sys.executable, "-c", _MEASURE.format(repository=watch.repository_id, watch=watch.pk)]
        return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout) / 1024

    def _watches(self, url: str, *, apps: int, repositories: int) -> list[int]:
        remotes = [self._repository(10) for _ in range(repositories)]
        return [self._watch(url, remote).pk for remote in remotes for _ in range(apps)]

    def _until_synced(self, watch_all: Callable[[], list[int]]) -> float:
        """From the moment when the jobs are queued and idle workers look at them."""
        from django_rq import get_queue
        from repositories import queue

        queue.connection().flushall()
        with _workers() as names:
            _wait(lambda: len(queue.connection().smembers("rq:workers")) >= WORKERS)
            watches = watch_all()
            started = time.perf_counter()
            _wait(lambda: _synced(watches) == len(watches))
            return time.perf_counter() - started


_MEASURE = """
import os, resource, django
django.setup()
from repositories import queue
from snapshots import services
from benchmarks.delivery import _deliver
if os.fork() == 0:
    services.take_snapshot({repository}, job_id="bench")
    queue.connection().flushall()
    os._exit(0)
os.wait()
if os.fork() == 0:
    _deliver({watch})
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
    os._exit(0)
os.wait()
"""


def _deliver(watch_id: int) -> None:
    from repositories.models import Watch
    from snapshots import delivery

    while delivery.deliver(watch_id, job_id="bench") is not None:
        pass
    assert Watch.objects.get(pk=watch_id).status == "synced"  # noqa: S101  a benchmark of a failure is none


async def _raw_rate(url: str) -> float:
    async def lane(session: aiohttp.ClientSession, count: int) -> None:
        for _ in range(count):
            async with session.post(f"{url}/create", data=BODY) as response:
                await response.read()

    connector = aiohttp.TCPConnector(limit=LANES)
    async with aiohttp.ClientSession(connector=connector) as session:
        started = time.perf_counter()
        await asyncio.gather(*(lane(session, SMALL // LANES) for _ in range(LANES)))
        return SMALL / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
