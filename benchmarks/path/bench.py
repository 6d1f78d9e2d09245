"""One run on one database: which services are up, and the repositories that several rows share."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.path import reference, remote
from benchmarks.path.postgres import Postgres
from benchmarks.path.reference import BareClone
from benchmarks.path.remote import Remote, Shape
from benchmarks.path.report import Outcome
from benchmarks.path.stage import Stage, Watch, Wrong
from benchmarks.path.usage import Peak

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    small: Shape
    medium: Shape
    large: Shape
    deliveries: int
    apps: int
    repositories: int
    files_for_each: int
    looks: int
    repositories_looked_at: tuple[int, ...]
    flipped: int
    flips: int
    rounds: int
    replayed: int


FULL = Sizes(
    small=Shape(100, 400_000),
    medium=Shape(16_000, 300_000_000),
    large=Shape(100_000, 100_000_000),
    deliveries=3_000,
    apps=50,
    repositories=20,
    files_for_each=100,
    looks=400,
    repositories_looked_at=(10, 100, 1_000, 10_000),
    flipped=1_000,
    flips=10,
    rounds=5,
    replayed=20,
)
QUICK = Sizes(
    small=Shape(100, 400_000),
    medium=Shape(1_000, 20_000_000),
    large=Shape(4_000, 8_000_000),
    deliveries=500,
    apps=5,
    repositories=4,
    files_for_each=20,
    looks=60,
    repositories_looked_at=(10, 60),
    flipped=100,
    flips=8,
    rounds=3,
    replayed=3,
)


@dataclass(slots=True)
class Synced:
    """A repository that an app has wholly, and the same in a bare clone."""

    stage: Stage
    watch: Watch
    clone: BareClone
    known: str
    """The commit that the app was told last."""
    first_sync: Outcome

    @property
    def remote(self) -> Remote:
        return self.watch.remote


class Bench:
    def __init__(
        self, folder: Path, templates: Path, *, postgres: Postgres | None, sizes: Sizes, patience: float
    ) -> None:
        folder.mkdir()
        self._folder, self.templates = folder, templates
        self._postgres = postgres
        self.sizes = sizes
        # Seconds that one change may take before its row gives up; a first sync gets five times as long.
        self.patience = patience
        self.peak = Peak()
        self._numbers = itertools.count()
        self._open = ExitStack()
        self._synced: tuple[str, Synced] | None = None
        self._remembered: dict[str, Any] = {}

    def close(self) -> None:
        """End the service that several rows share."""
        self._synced = None
        self._open.close()

    def once(self, name: str, measure: Callable[[], T]) -> T:
        """For rows that come out of one measurement."""
        if name not in self._remembered:
            self._remembered[name] = measure()
        found: T = self._remembered[name]
        return found

    @contextmanager
    def stage(self, **settings: str) -> Iterator[Stage]:
        """A service with nothing in it, alone on the machine."""
        self.close()
        folder = self._folder / str(next(self._numbers))
        with Stage(folder, postgres=self._postgres, settings=settings) as stage:
            try:
                yield stage
            finally:
                self.peak.merge(stage.peak)

    def synced(self, name: str, template: Callable[[], Path]) -> Synced:
        """A service with one repository that an app has wholly; kept until another one is asked for."""
        if self._synced and self._synced[0] == name:
            return self._synced[1]
        self.close()
        stage = self._open.enter_context(self.stage())
        try:
            synced = self.sync(stage, stage.publish(f"bench/{name}", template()), "reader")
        except BaseException:
            self.close()
            raise
        self._synced = (name, synced)
        return synced

    def generated(self, name: str, shape: Shape) -> Callable[[], Path]:
        def make() -> Path:
            path = self.templates / f"{name}.git"
            if not path.exists():
                remote.create(path, remote.generate(shape))
            return path

        return make

    def sync(self, stage: Stage, repository: Remote, app_name: str) -> Synced:
        """The first sync, beside bare git and the bare client; what the receiver has is compared with what git has."""
        app, tip, count = stage.onboard(app_name), repository.tip, len(repository.paths())
        busy = stage.cpu_seconds()
        started = time.monotonic()
        watch = stage.watch(app, repository)
        registered = time.monotonic()
        told = stage.told(watch, tip, paths=count, seconds=5 * self.patience)
        stage.wait_until_synced(watch, tip)
        busy = stage.cpu_seconds() - busy
        clone = BareClone(stage.folder / f"bare-{next(self._numbers)}", repository.url)
        fetched = clone.fetch(tip)
        read, hashes = clone.read_and_hash()
        sent = reference.send_all(reference.posts(clone, stage.receiver, tip))
        if stage.files(watch) != hashes:
            raise Wrong("the receiver does not have what git has")
        outcome = Outcome(
            ours=told.last_at - started,
            reference=fetched + read + sent,
            detail=f"registered after {registered - started:.2f} s,"
            f" first webhook after {told.first_at - started:.1f} s,"
            f" then {count / (told.last_at - told.first_at or 1):.0f}/s, CPU {busy:.1f} s;"
            f" bare: fetch {fetched:.1f} s, read {read:.1f} s, POST {sent:.1f} s ({count / sent:.0f}/s)",
        )
        return Synced(stage, watch, clone, tip, outcome)
