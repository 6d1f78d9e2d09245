"""What a snapshot costs beside bare git, on the same repositories and the same git host, in the same run.

    make bench-snapshots                          all of them
    python -m benchmarks.snapshots apps medium    50 apps on one repository; 16,000 files / 300 MB
    python -m benchmarks.snapshots many large     100,000 files; a binary of 500 MB and a text of 200 MB

Each number is measured in a process of its own, as a worker's job is; memory is the largest sum over that
process and its git children, where a page that several processes share counts once in all (PSS).
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from docora.demo.bare import GIT_ENVIRONMENT, BareRepository
from docora.demo.githost import GitHost, HostedRepository
from docora.processes import valkey

ROUNDS = 15
FIRSTS = 3
APPS = 50


@dataclass
class Result:
    """What one process measured."""

    seconds: list[float]
    peak: int = 0
    files: int = 0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass
class Bench:
    host: GitHost
    folder: Path
    environment: dict[str, str]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, verb: str, *words: str) -> Result:
        """This module again, in a process whose memory is watched."""
        command = [sys.executable, "-m", "benchmarks.snapshots", verb, *words]
        process = subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, text=True)
        with PeakMemory(process.pid) as memory:
            output = process.communicate()[0]
        if process.returncode:
            raise SystemExit(f"{verb} failed")
        return Result(**json.loads(output.splitlines()[-1]), peak=memory.peak)

    def note(self, what: str, here: str, reference: str, goal: str) -> None:
        print(f"{what}: {here}", flush=True)
        self.rows.append((what, here, reference, goal))


class PeakMemory(threading.Thread):
    """The largest sum of memory of a process and all of its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._process = psutil.Process(pid)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            with suppress(psutil.Error):
                family = [self._process, *self._process.children(recursive=True)]
                self.peak = max(self.peak, sum(_share(process) for process in family))

    def __enter__(self) -> "PeakMemory":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def _share(process: psutil.Process) -> int:
    """Not the resident set: for a moment a forked git is a copy of its parent, and would count it twice."""
    with suppress(psutil.Error, OSError):
        return int(process.memory_full_info().pss)
    return 0


def make_files(count: int, total: int) -> Iterator[tuple[str, bytes]]:
    """Prose and pictures, mostly small and a few large, as repositories have them."""
    chance = random.Random(1)  # noqa: S311  the same files in every run
    words = [bytes(chance.choices(b"etaoinshrdlucmfwyp", k=chance.randint(2, 9))) + b" \n"[: 1 + (n % 12 == 0)]
             for n in range(4096)]  # fmt: skip
    for number in range(count):
        size = int(chance.expovariate(count / total)) + 20
        if number % 5 == 0:
            yield f"img/d{number % 100}/f{number}.png", chance.randbytes(size)
        else:
            yield f"docs/d{number % 100}/s{number % 7}/f{number}.md", b"".join(chance.choices(words, k=size // 6))


def fill(repository: BareRepository, count: int, total: int) -> None:
    files = list(make_files(count, total))
    for start in range(0, count, 2000):
        repository.commit(dict(files[start : start + 2000]))
    repository.git("repack", "-adq")


def measured(function: Callable[[], object]) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def git(*words: str, folder: Path | None = None) -> None:
    subprocess.run(["git", *words], cwd=folder, env=GIT_ENVIRONMENT, check=True, capture_output=True)


def bare_ask(url: str) -> None:
    git("ls-remote", "--symref", url, "HEAD")


def bare_first(url: str) -> float:
    """A shallow fetch, and the SHA-256 of every content."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        git("init", "--quiet", "--bare", folder)
        git("fetch", "--quiet", "--depth=1", url, "HEAD:refs/heads/main", folder=Path(folder))
        listing = subprocess.run(
            ["git", "ls-tree", "-r", "main"], cwd=folder, env=GIT_ENVIRONMENT, check=True, capture_output=True
        ).stdout
        _hash_all(folder, [line.split()[2] for line in listing.splitlines()])
        return time.perf_counter() - started


def _hash_all(folder: str, blobs: list[bytes]) -> None:
    with subprocess.Popen(
        ["git", "cat-file", "--batch"],
        cwd=folder,
        env=GIT_ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        requests, answers = process.stdin, process.stdout
        if requests is None or answers is None:
            raise SystemExit("no pipes")
        threading.Thread(target=lambda: (requests.write(b"\n".join(blobs) + b"\n"), requests.close())).start()
        while header := answers.readline():
            left, digest = int(header.split()[2]), hashlib.sha256()
            while left:
                piece = answers.read(min(left, 1 << 18))
                left -= len(piece)
                digest.update(piece)
            answers.read(1)


def bench_size(bench: Bench, name: str, count: int, total: int, *, ratio: float | None = 1.3) -> None:
    repository = bench.host.create(f"bench/{name}")
    fill(repository, count, total)
    label = f"{count:,} files / {total / 1e6:.0f} MB"
    files = _bench_first(bench, repository, label, f"at most {ratio}x" if ratio else f"{count:,} files sync")
    if files != count:
        raise SystemExit(f"{files} files instead of {count}")
    _bench_unchanged(bench, repository, label)
    _bench_one_change(bench, repository, label, "at most 0.3 s" if ratio else "")


def _bench_first(bench: Bench, repository: HostedRepository, label: str, goal: str) -> int:
    """In turns, so that a slow moment of the machine hits both; returns how many files a snapshot has."""
    references, firsts = [], []
    for _ in range(FIRSTS):
        references.append(bare_first(repository.url))
        firsts.append(bench.run("first", repository.url))
    reference = statistics.median(references)
    seconds = statistics.median(first.median for first in firsts)
    here = f"{seconds:.2f} s ({seconds / reference:.2f}x)"
    bench.note(f"first snapshot, {label}", here, f"{reference:.2f} s bare fetch + cat-file", goal)
    peak = max(first.peak for first in firsts)
    bench.note(f"peak memory, {label}", f"{peak / 1e6:.0f} MB", "", "at most 120 MB" if "x" in goal else "")
    return firsts[-1].files


def _bench_unchanged(bench: Bench, repository: HostedRepository, label: str) -> None:
    asked = [measured(lambda: bare_ask(repository.url)) for _ in range(ROUNDS)]
    unchanged = bench.run("again", repository.url, str(ROUNDS))
    asked += [measured(lambda: bare_ask(repository.url)) for _ in range(ROUNDS)]
    reference = statistics.median(asked)
    bench.note(
        f"unchanged, {label}",
        f"{unchanged.median * 1000:.1f} ms ({unchanged.median / reference:.2f}x)",
        f"{reference * 1000:.1f} ms bare ls-remote",
        "at most 1.5x",
    )


def _bench_one_change(bench: Bench, repository: HostedRepository, label: str, goal: str) -> None:
    seconds = []
    for number in range(5):
        repository.commit({"docs/d1/changed.md": f"change {number}\n"})
        seconds += bench.run("again", repository.url, "1").seconds
    bench.note(f"one file changed, {label}", f"{statistics.median(seconds):.3f} s", "", goal)


def bench_large_files(bench: Bench) -> None:
    _bench_large(bench, "one binary of 500 MB", os.urandom(500_000_000))
    _bench_large(bench, "one text of 200 MB", b"So long, and thanks for all the fish.\n" * 5_263_158)


def _bench_large(bench: Bench, label: str, content: bytes) -> None:
    repository = bench.host.create(f"bench/{len(content)}")
    repository.commit({"large": content})
    first = bench.run("first", repository.url)
    bench.note(f"first snapshot, {label}", f"{first.median:.2f} s", "", "streamed")
    bench.note(f"peak memory, {label}", f"{first.peak / 1e6:.0f} MB", "", "at most 150 MB")


def bench_apps(bench: Bench) -> None:
    repository = bench.host.create("bench/shared")
    repository.commit({"a.md": "a"})
    bench.run("first", repository.url, str(APPS))
    bench.note(f"{APPS} apps, one repository: fetches", str(bench.host.count(repository, "fetch")), "", "1")


PARTS: dict[str, Callable[[Bench], None]] = {
    "apps": bench_apps,
    "medium": lambda bench: bench_size(bench, "medium", 16_000, 300_000_000),
    "many": lambda bench: bench_size(bench, "many", 100_000, 100_000_000, ratio=None),
    "large": bench_large_files,
}


def main(parts: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="docora-bench-") as name, GitHost(Path(name) / "host") as host:
        folder = Path(name)
        bench = Bench(host, folder, _environment(folder, host))
        store = valkey.start(folder / "valkey.sock", persistent=False)
        try:
            subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=bench.environment, check=True)
            for part in parts:
                PARTS[part](bench)
        finally:
            store.terminate()
            store.wait()
    table = Table("", "here", "reference", "goal")
    for row in bench.rows:
        table.add_row(*row)
    Console(width=120).print(table)


def _environment(folder: Path, host: GitHost) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "DJANGO_SETTINGS_MODULE": "docora.settings",
        "DOCORA_DATA_DIR": str(folder / "data"),
        "REDIS_URL": f"unix://{folder / 'valkey.sock'}",
        "DOCORA_GIT_HOSTS": host.address,
        "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        "DOCORA_LOG_LEVEL": "WARNING",
    }


def child(verb: str, words: list[str]) -> None:
    """`first URL [APPS]` watches anew and takes the first snapshot; `again URL TIMES` takes further ones."""
    import django

    django.setup()
    from repositories import accounts, watches
    from repositories.git import clones
    from repositories.models import App, Repository
    from snapshots.look import take_snapshot
    from snapshots.models import Snapshot

    url, times = words[0], int(words[1]) if len(words) > 1 else 1
    if verb == "first":
        for known in Repository.objects.filter(url=url):
            shutil.rmtree(clones.path_of(known.clone_key))
            known.delete()
        for number in range(times):
            accounts.onboard(f"app {number}", "http://127.0.0.1:9")
        for app in App.objects.order_by("-pk")[:times]:
            watches.watch(app, url)
        times = 1
    repository = Repository.objects.get(url=url)
    repository.watches.update(synced_sequence=repository.sequence)  # as if all had been delivered
    seconds = [measured(lambda: take_snapshot(repository.pk, job_id="bench")) for _ in range(times)]
    newest = Snapshot.objects.filter(repository=repository).order_by("sequence").last()
    print(json.dumps({"seconds": seconds, "files": newest.files if newest else 0}))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in {"first", "again"}:
        child(sys.argv[1], sys.argv[2:])
    else:
        parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
        parser.add_argument("parts", nargs="*", default=list(PARTS), metavar="PART", help=", ".join(PARTS))
        main(parser.parse_args().parts)
