"""Looks at repositories that have not changed: what they cost, and how many there are in a second."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.path import reference
from benchmarks.path.bench import Bench
from benchmarks.path.report import Outcome
from benchmarks.path.stage import NotDelivered, Stage, Watch

# What is written after the last answer belongs to the looks too.
_SETTLING = 1.0
# Each repository is looked at every RESCAN_INTERVAL, by default 300 s.
_INTERVALS_PER_HOUR = 12


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


def hour_of_looks(bench: Bench, *, count: int) -> Outcome:
    return bench.once("hours", partial(_measure_hours, bench))[count]


@dataclass(frozen=True, slots=True)
class _Round:
    """Repositories that were all due at the same moment: looks per second, seconds of CPU, seconds by the clock."""

    per_second: float
    cpu: float
    seconds: float


def _measure_looks(bench: Bench) -> _Looks:
    count = bench.sizes.looks
    with _watched(bench) as (stage, watch):
        stage.service.inside("multiply", watch.repository_id, count)
        idle = _idle_share(stage)
        found = [_look_at_all(stage, count, bench.patience) for _ in range(3)]
        bare = _bare(watch, count, rounds=3)
    detail = f"with git's children and the database server; idle, all take {idle * 1000:.0f} ms a second"
    each = 1000 * median(each.cpu for each in found) / count
    return _Looks(median(each.per_second for each in found), each, bare, detail)


def _measure_hours(bench: Bench) -> dict[int, Outcome]:
    """What the looks of one interval take, less what all processes take when idle, times an hour's intervals."""
    found = {}
    with _watched(bench) as (stage, watch):
        idle = _idle_share(stage)
        for count in bench.sizes.repositories_looked_at:
            stage.service.inside("multiply", watch.repository_id, count)
            rounds = [_look_at_all(stage, count, bench.patience) for _ in range(3)]
            cpu = median(max(0.0, each.cpu - idle * each.seconds) for each in rounds)
            bare = _bare(watch, count, rounds=1).cpu_milliseconds * count / 1000
            found[count] = Outcome(
                ours=cpu * _INTERVALS_PER_HOUR,
                reference=bare * _INTERVALS_PER_HOUR,
                detail=f"{1000 * cpu / count:.2f} ms a look; all due in {count / rounds[-1].per_second:.1f} s",
            )
    return found


@contextmanager
def _watched(bench: Bench) -> Iterator[tuple[Stage, Watch]]:
    """One watched repository on a server that answers at once."""
    with bench.stage(SCAN_INTERVAL="1") as stage:
        stage.create("instant", [("README.md", b"instant\n")])
        repository = stage.instant("instant/repository")
        watch = stage.watch(stage.onboard("reader"), repository)
        stage.wait_until_synced(watch, repository.tip)
        yield stage, watch


def _idle_share(stage: Stage) -> float:
    return _cpu_while(stage, lambda: time.sleep(3)) / 3


def _bare(watch: Watch, count: int, *, rounds: int) -> reference.BareLooks:
    return reference.bare_looks([f"{watch.remote.url}-{number}" for number in range(count)] * rounds)


def _look_at_all(stage: Stage, count: int, patience: float) -> _Round:
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
    return _Round((count - 1) / (max(seen) - min(seen)), work, time.monotonic() - began)


def _cpu_while(stage: Stage, action: Callable[[], None]) -> float:
    before = stage.cpu_seconds()
    action()
    return stage.cpu_seconds() - before
