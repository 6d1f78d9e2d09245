"""Looks at repositories that have not changed: what they cost, and how many there are in a second."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.path import reference
from benchmarks.path.bench import Bench
from benchmarks.path.report import Outcome
from benchmarks.path.stage import NotDelivered, Stage

# What is written after the last answer belongs to the looks too.
_SETTLING = 1.0


@dataclass(frozen=True, slots=True)
class _Looks:
    per_second: float
    cpu_milliseconds: float
    bare: reference.BareLooks
    detail: str


def cpu_of_looks(bench: Bench) -> Outcome:
    looks = bench.once("looks", partial(_measure_looks, bench))
    return Outcome(ours=looks.cpu_milliseconds, reference=looks.bare.cpu_milliseconds, unit="ms", detail=looks.detail)


def rate_of_looks(bench: Bench) -> Outcome:
    looks = bench.once("looks", partial(_measure_looks, bench))
    return Outcome(ours=looks.per_second, reference=looks.bare.per_second, unit="/s", detail="bare: one POST each")


def _measure_looks(bench: Bench) -> _Looks:
    """Repositories that are all due at the same moment, on a server that answers at once."""
    count = bench.sizes.looks
    with bench.stage(SCAN_INTERVAL="1") as stage:
        stage.create("instant", [("README.md", b"instant\n")])
        repository = stage.instant("instant/repository")
        watch = stage.watch(stage.onboard("reader"), repository)
        stage.wait_until_synced(watch, repository.tip)
        stage.service.inside("multiply", watch.repository_id, count - 1)
        idle = _cpu_while(stage, lambda: time.sleep(3)) / 3
        found = [_looks_once(stage, count, bench.patience) for _ in range(3)]
        bare = reference.bare_looks([f"{repository.url}-{number}" for number in range(count)] * 3)
    rates, work = zip(*found, strict=True)
    detail = f"with git's children and the database server; idle, all take {idle * 1000:.0f} ms a second"
    return _Looks(median(rates), median(work), bare, detail)


def _looks_once(stage: Stage, count: int, patience: float) -> tuple[float, float]:
    """Looks per second between the first and the last, and milliseconds of CPU for each."""
    began = time.monotonic()
    seen: list[float] = []

    def wait_for_all() -> None:
        stage.service.inside("make_due", stage.git_address)
        while len(seen) < count and time.monotonic() < began + patience:
            time.sleep(0.25)
            seen[:] = {name: at for name, kind, at in stage.git_requests(began) if kind == "ls-refs"}.values()
        time.sleep(_SETTLING)

    work = _cpu_while(stage, wait_for_all)
    if len(seen) < count:
        raise NotDelivered(f"{len(seen)} of {count} looks in {patience:g} s")
    return (count - 1) / (max(seen) - min(seen)), 1000 * work / count


def _cpu_while(stage: Stage, action: Callable[[], None]) -> float:
    before = stage.cpu_seconds()
    action()
    return stage.cpu_seconds() - before
