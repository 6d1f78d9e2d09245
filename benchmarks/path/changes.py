"""One changed file, and one that is told again by hand: in repositories of any size."""

import time
from dataclasses import dataclass
from statistics import fmean, median

from benchmarks.path import usage
from benchmarks.path.bench import Bench, Synced
from benchmarks.path.reference import BareClone
from benchmarks.path.remote import Shape
from benchmarks.path.report import Outcome
from benchmarks.path.stage import NotDelivered, Stage, Wrong

# A look that is asked for while the one before still ends would wait for it; commits do not come that fast either.
PAUSE = 1.0
# What is written after an acknowledgement belongs to the work too.
_SETTLING = 0.3


@dataclass(frozen=True, slots=True)
class _Bare:
    """`git ls-remote` and `git fetch`."""

    seconds: float
    cpu: float


@dataclass(frozen=True, slots=True)
class _OneChange:
    ours: float
    cpu: float
    reference: "_Bare"
    steps: dict[str, float]
    """Seconds until the git server was first asked in each way."""


def change(bench: Bench, *, name: str, shape: Shape) -> Outcome:
    synced = bench.synced(name, bench.generated(name, shape))
    try:
        found = [_change_once(synced, number, bench.patience) for number in range(bench.sizes.rounds)]
    except NotDelivered:
        bench.close()  # the job that did not end would hold up the next row
        raise
    if synced.stage.files(synced.watch) != synced.clone.read_and_hash()[1]:
        raise Wrong("the receiver does not have what git has")
    return _median_of(found)


def _change_once(synced: Synced, number: int, patience: float) -> _OneChange:
    stage, watch = synced.stage, synced.watch
    path = next(path for path in synced.remote.paths()[number * 7 :] if path.endswith(".md"))
    commit = synced.remote.commit({path: b"changed %d at %d\n" % (number, time.time_ns())})
    time.sleep(PAUSE)
    # In turns, so that neither always finds the server's caches warm.
    bare = _bare(synced.clone, commit) if number % 2 else None
    busy = stage.cpu_seconds()
    begun = stage.look(watch)
    told = stage.told(watch, commit, paths=1, seconds=patience)
    time.sleep(_SETTLING)
    busy = stage.cpu_seconds() - busy
    bare = bare or _bare(synced.clone, commit)
    stage.wait_until_synced(watch, commit)
    synced.known = commit
    return _OneChange(told.last_at - begun, busy, bare, _steps(stage, begun))


def _bare(clone: BareClone, commit: str) -> _Bare:
    busy = usage.cpu_of_own_children()
    seconds = ask_and_fetch(clone, commit)
    return _Bare(seconds, usage.cpu_of_own_children() - busy)


def ask_and_fetch(clone: BareClone, commit: str) -> float:
    return clone.ask() + clone.fetch(commit)


def _steps(stage: Stage, begun: float) -> dict[str, float]:
    steps: dict[str, float] = {}
    for _, kind, at in stage.git_requests(begun):
        steps.setdefault(kind, at - begun)
    return steps


def _median_of(found: list[_OneChange]) -> Outcome:
    asked = median(change.steps.get("advertise", change.steps.get("ls-refs", 0)) for change in found)
    fetched = median(change.steps.get("fetch", 0) for change in found)
    cpu, bare_cpu = fmean(change.cpu for change in found), fmean(change.reference.cpu for change in found)
    return Outcome(
        ours=median(change.ours for change in found),
        reference=median(change.reference.seconds for change in found),
        detail=f"git server asked after {asked * 1000:.0f} ms, fetched from after {fetched * 1000:.0f} ms;"
        f" first {found[0].ours:.2f} s, slowest {max(change.ours for change in found):.2f} s of {len(found)};"
        f" CPU {cpu * 1000:.0f} ms, bare git's {bare_cpu * 1000:.0f} ms",
    )


def redeliver(bench: Bench) -> Outcome:
    synced = bench.synced("large", bench.generated("large", bench.sizes.large))
    try:
        found = [_redeliver_once(synced, bench.patience) for _ in range(bench.sizes.rounds)]
    except NotDelivered:
        bench.close()
        raise
    ours, bare = zip(*found, strict=True)
    slowest = f"slowest {max(ours):.2f} s of {len(ours)}"
    return Outcome(ours=median(ours), reference=median(bare), detail=f"reference: 1 changed file; {slowest}")


def _redeliver_once(synced: Synced, patience: float) -> tuple[float, float]:
    stage, watch, call = synced.stage, synced.watch, synced.stage.service.call
    time.sleep(PAUSE)
    place = f"/repositories/{watch.repository_id}/deliveries"
    newest = call("GET", f"{place}?limit=1", watch.app.bearer)["deliveries"][0]
    before = stage.told(watch, synced.known, seconds=1).messages
    begun = time.monotonic()
    call("POST", f"{place}/{newest['id']}/redeliver", watch.app.bearer)
    told = stage.told(watch, synced.known, messages=before + 1, seconds=patience)
    stage.wait_until_synced(watch, synced.known)
    # A commit that the service is not told to look at.
    commit = synced.remote.commit({"docs/aside.md": b"%d\n" % time.time_ns()})
    return told.last_at - begun, ask_and_fetch(synced.clone, commit)
