"""Many apps on one repository, and many repositories: one commit of many files, told to all who watch."""

import time
from functools import partial
from statistics import median

from benchmarks.path import reference, remote
from benchmarks.path.bench import Bench
from benchmarks.path.changes import PAUSE, ask_and_fetch
from benchmarks.path.reference import BareClone
from benchmarks.path.report import Outcome
from benchmarks.path.stage import Stage, Watch


def apps(bench: Bench) -> Outcome:
    with bench.stage() as stage:
        repository = stage.create("bench/shared", [("README.md", b"shared\n")])
        watches = [stage.watch(stage.onboard(f"reader-{n}"), repository) for n in range(bench.sizes.apps)]
        return _many_files(bench, stage, watches)


def repositories(bench: Bench) -> Outcome:
    outcome, _ = bench.once("repositories", partial(_measure_repositories, bench))
    return outcome


def register(bench: Bench) -> Outcome:
    _, outcome = bench.once("repositories", partial(_measure_repositories, bench))
    return outcome


def _measure_repositories(bench: Bench) -> tuple[Outcome, Outcome]:
    with bench.stage() as stage:
        app = stage.onboard("reader")
        watches, took, bare = [], [], []
        for number in range(bench.sizes.repositories):
            repository = stage.create(f"bench/one-{number}", [("README.md", b"%d\n" % number)])
            started = time.perf_counter()
            watches.append(stage.watch(app, repository))
            took.append(time.perf_counter() - started)
            stage.wait_until_synced(watches[-1], repository.tip)
            bare.append(BareClone(stage.folder / f"ask-{number}", repository.url).ask())
        return _many_files(bench, stage, watches), Outcome(ours=median(took), reference=median(bare))


def _many_files(bench: Bench, stage: Stage, watches: list[Watch]) -> Outcome:
    """One commit of many files in each repository, told to all who watch; some rounds of it."""
    repositories = list({watch.remote.name: watch.remote for watch in watches}.values())
    for watch in watches:
        stage.wait_until_synced(watch, watch.remote.tip)
    clones = {there.name: BareClone(stage.folder / f"many-{n}", there.url) for n, there in enumerate(repositories)}
    for there in repositories:
        clones[there.name].fetch(there.tip)
    ours, cpu, bare = [], [], []
    for number in range(3):
        files = remote.texts(bench.sizes.files_for_each, 4_000, seed=number)
        commits = {there.name: there.commit(files) for there in repositories}
        time.sleep(PAUSE)
        busy = stage.cpu_seconds()
        begun = stage.look(*watches)
        ends = [
            stage.told(watch, commits[watch.remote.name], paths=len(files), seconds=2 * bench.patience).last_at
            for watch in watches
        ]
        ours.append(max(ends) - begun)
        cpu.append(stage.cpu_seconds() - busy)
        for watch in watches:
            stage.wait_until_synced(watch, commits[watch.remote.name])
        bare.append(_bare_many_files(stage, watches, clones, commits, frozenset(files)))
    return Outcome(
        ours=median(ours),
        reference=median(sum(parts) for parts in bare),
        detail=f"CPU {median(cpu):.1f} s; "
        + "bare: ls-remote and fetch {:.2f} s, POST {:.2f} s".format(*map(median, zip(*bare, strict=True))),
    )


def _bare_many_files(
    stage: Stage, watches: list[Watch], clones: dict[str, BareClone], commits: dict[str, str], files: frozenset[str]
) -> tuple[float, float]:
    """Seconds of the fetches, one after the other, and of all requests by one client."""
    fetched = sum(ask_and_fetch(clones[name], commit) for name, commit in commits.items())
    bodies = {
        name: reference.posts(clones[name], stage.receiver, commit, chosen=files) for name, commit in commits.items()
    }
    return fetched, reference.send_all([post for watch in watches for post in bodies[watch.remote.name]])
