"""The rows: what each measures, and its goal."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.path import reference, remote, usage
from benchmarks.path.bench import Bench, Sizes
from benchmarks.path.changes import PAUSE, ask_and_fetch, change, redeliver
from benchmarks.path.looks import cpu_of_looks, hour_of_looks, rate_of_looks
from benchmarks.path.many import apps, register, repositories
from benchmarks.path.reference import BareClone
from benchmarks.path.remote import Shape
from benchmarks.path.report import Goal, Outcome, middle_of
from benchmarks.path.stage import Stage

_MB = 1e6
_IDLE_SECONDS = 5
# They live for a minute, and their workers look every ten seconds.
_HORSES_LEAVE_WITHIN = 80


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    goal: Goal | None
    measure: Callable[[Bench], Outcome]


def all_rows(sizes: Sizes) -> dict[str, Row]:
    """In the order in which they are measured: neighbours share a service."""
    one, thrice = "1 file changed in", Goal(limit=3)
    each = f"{sizes.files_for_each} files each"
    return {
        "first-small": Row(f"first sync, {sizes.small.title}", None, partial(_first, name="small", shape=sizes.small)),
        "change-small": Row(f"{one} {sizes.small.title}", thrice, partial(change, name="small", shape=sizes.small)),
        "first-medium": Row(
            f"first sync, {sizes.medium.title}",
            Goal(limit=1.5),
            partial(_first, name="medium", shape=sizes.medium, times=3),
        ),
        "change-medium": Row(f"{one} {sizes.medium.title}", thrice, partial(change, name="medium", shape=sizes.medium)),
        "first-large": Row(f"first sync, {sizes.large.title}", None, partial(_first, name="large", shape=sizes.large)),
        "change-large": Row(f"{one} {sizes.large.title}", thrice, partial(change, name="large", shape=sizes.large)),
        "redeliver": Row(f"1 file redelivered by hand, {sizes.large.title}", thrice, redeliver),
        "deliveries": Row(
            f"deliveries/s, {sizes.deliveries:,} texts of 18 KB, 1 app", Goal(limit=0.5, at_least=True), _deliveries
        ),
        "apps": Row(f"{sizes.apps} apps, 1 repository, {each}", Goal(limit=2.5), apps),
        "repositories": Row(f"{sizes.repositories} repositories, 1 app, {each}", Goal(limit=2.5), repositories),
        "register": Row("POST /api/repositories, beside ls-remote", None, register),
        "unchanged-cpu": Row("CPU of an unchanged look", Goal(limit=3, of="ms"), cpu_of_looks),
        "unchanged-rate": Row(
            f"unchanged looks/s, {sizes.looks} due at once", Goal(limit=250, of="/s", at_least=True), rate_of_looks
        ),
        **{
            f"looks-{count}": Row(
                f"CPU of an hour's looks at {count:,} unchanged repositories", None, partial(hour_of_looks, count=count)
            )
            for count in sizes.repositories_looked_at
        },
        "force-push": Row(
            f"force push, {sizes.flipped:,} files back and forth: CPU of the last beside the first",
            Goal(limit=1.3),
            _force_push,
        ),
        "idle": Row("idle `make run`, PSS of all processes", Goal(limit=350, of="MB"), _idle),
        "memory": Row("largest Python process of any job so far", Goal(limit=120, of="MB"), _memory),
    }


def _first(bench: Bench, *, name: str, shape: Shape, times: int = 1) -> Outcome:
    template = bench.generated(name, shape)

    def sync(number: int) -> Outcome:
        synced = bench.synced(name, template)
        if number:
            copy = synced.stage.publish(f"bench/{name}-{number}", template())
            synced = bench.sync(synced.stage, copy, f"reader-{number}")
        return synced.first_sync

    return middle_of(partial(sync, number) for number in range(times))


def _deliveries(bench: Bench) -> Outcome:
    """Between the first acknowledgement and the last one: without the snapshot before."""
    with bench.stage() as stage:
        deliver = partial(_deliver_once, stage, bench.sizes.deliveries, patience=bench.patience)
        return middle_of(partial(deliver, number) for number in range(5))


def _deliver_once(stage: Stage, count: int, number: int, *, patience: float) -> Outcome:
    repository = stage.create(f"bench/texts-{number}", remote.texts(count, 18_000, seed=number).items())
    tip, watch = repository.tip, stage.watch(stage.onboard(f"reader-{number}"), repository)
    stage.told(watch, tip, paths=1, seconds=5 * patience)
    busy = stage.cpu_seconds()
    told = stage.told(watch, tip, paths=count, seconds=5 * patience)
    busy = stage.cpu_seconds() - busy
    stage.wait_until_synced(watch, tip)
    clone = BareClone(stage.folder / f"bare-{number}", repository.url)
    clone.fetch(tip)
    posts = reference.posts(clone, stage.receiver, tip)
    started = time.process_time()
    bare = count / reference.send_all(posts)
    bare_busy = time.process_time() - started
    return Outcome(
        ours=count / (told.last_at - told.first_at),
        reference=bare,
        unit="/s",
        detail=f"CPU {1000 * busy / count:.2f} ms each;"
        f" bare client's {1000 * bare_busy / count:.2f} ms, without signing",
    )


def _force_push(bench: Bench) -> Outcome:
    """Every file differs between two tips; each time they take turns, the history is longer.

    Compared by CPU: the two are measured at different moments, and a busy machine would decide otherwise.
    """
    count = bench.sizes.flipped
    took, cpu, bare = [], [], []
    with bench.stage() as stage:
        repository = stage.create("bench/flipped", remote.texts(count, 2_000, seed=1).items())
        synced = bench.sync(stage, repository, "reader")
        tips = [synced.known, repository.replace(remote.texts(count, 2_000, seed=2))]
        for number in range(1, bench.sizes.flips + 1):
            tip = tips[number % 2]
            repository.point_to(tip)
            time.sleep(PAUSE)
            busy = stage.cpu_seconds()
            begun = stage.look(synced.watch)
            # Each tip's turn adds as many messages to those that came with it before.
            told = stage.told(synced.watch, tip, messages=count * (number // 2 + 1), seconds=bench.patience)
            stage.wait_until_synced(synced.watch, tip)
            took.append(told.last_at - begun)
            cpu.append(stage.cpu_seconds() - busy)
            fetched = ask_and_fetch(synced.clone, tip)
            bare.append(fetched + reference.send_all(reference.posts(synced.clone, stage.receiver, tip)))
    # The very first brings contents that were never seen before.
    return Outcome(
        ours=median(cpu[-3:]),
        reference=median(cpu[1:4]),
        detail=f"CPU of the last 3 of {len(took)} turns beside turns 2 to 4; {median(took[-3:]):.2f} s and"
        f" {median(took[1:4]):.2f} s by the clock, bare fetch and POST {median(bare):.2f} s",
    )


def _idle(bench: Bench) -> Outcome:
    """The larger one of two: just started, and after some work, once the work horses that were kept have gone."""
    with bench.stage() as stage:
        time.sleep(_IDLE_SECONDS)
        started = usage.pss(stage.service.pid) / _MB
        processes = len(list(usage.family(stage.service.pid)))
        bench.sync(stage, stage.publish("bench/small", bench.generated("small", bench.sizes.small)()), "reader")
        time.sleep(_IDLE_SECONDS)
        worked = usage.pss(stage.service.pid) / _MB
        time.sleep(_HORSES_LEAVE_WITHIN)
        idle = usage.pss(stage.service.pid) / _MB
    detail = (
        f"just started {started:.0f} MB in {processes} processes; right after some work {worked:.0f} MB, because work"
        f" horses stay for a minute; then {idle:.0f} MB"
    )
    return Outcome(ours=max(started, idle), unit="MB", detail=detail)


def _memory(bench: Bench) -> Outcome:
    """Over all rows so far; if there were none, over a first sync of the largest repository."""
    if not bench.peak.python:
        bench.synced("large", bench.generated("large", bench.sizes.large))
    bench.close()
    detail = f"resident set, with what it shares with its parent; largest git process {bench.peak.git / _MB:.0f} MB"
    return Outcome(ours=bench.peak.python / _MB, unit="MB", detail=detail)
