"""What has happened since Redis was last emptied: counters and histograms, in one hash that every process adds to.

A run adds up what it did in its own memory and writes it once, at its end. Counting rows of a log instead would go
backwards when the log is trimmed. Labels have few values, which are listed here, so that their number stays bounded.
"""

import logging
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import product

import redis
from rq.utils import as_text

from repositories.base import connections

log = logging.getLogger("docora.metrics")

_KEY = "docora:metrics"
_SUM = "sum"
_INFINITE = "+Inf"
_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counter:
    name: str
    help: str
    # Each label with the values that it can have.
    labels: dict[str, Labels] = field(default_factory=dict)

    @property
    def combinations(self) -> Iterator[Labels]:
        return product(*self.labels.values())


@dataclass(frozen=True, slots=True)
class Histogram(Counter):
    bounds: tuple[float, ...] = _SECONDS

    @property
    def buckets(self) -> Labels:
        return _names_of(self.bounds)


@cache  # asked for with every message
def _names_of(bounds: tuple[float, ...]) -> Labels:
    return (*(str(float(bound)) for bound in bounds), _INFINITE)


_VIA = ("http", "git")
_APP_CLASS = ("fast", "slow")
_LOCK = ("repository", "delivery", "fetch", "janitor")

LOOKS = Counter(
    "looks",
    "Looks at repositories: over HTTP by the scheduler, or with git by a worker.",
    {"via": _VIA, "outcome": ("unchanged", "changed", "passed-on", "put-off", "refused", "failed")},
)
LOOK_SECONDS = Histogram("look_seconds", "How long looks took; with git, the fetch included.", {"via": _VIA})
FETCHES = Counter("fetches", "Clones and fetches.", {"outcome": ("ok", "failed")})
FETCH_SECONDS = Histogram("fetch_seconds", "How long clones and fetches took.", bounds=(*_SECONDS, 1800, 3600))
SNAPSHOTS = Counter("snapshots", "Commits whose manifest was written.")
DELIVERIES = Counter(
    "deliveries",
    "Webhooks by how the endpoint answered. refused: a 4xx about the one file; status: any other that is not 2xx.",
    {
        "app_class": _APP_CLASS,
        "outcome": (
            *("accepted", "refused", "status", "timeout", "connection", "dns", "tls", "protocol"),
            *("proxy", "forbidden-address"),
        ),
    },
)
DELIVERY_SECONDS = Histogram("delivery_seconds", "How long endpoints took to answer.", {"app_class": _APP_CLASS})
ACKNOWLEDGED_SECONDS = Histogram(
    "push_to_acknowledged_seconds",
    "From when a commit was noticed until an app had acknowledged all of it; first syncs are left out.",
    {"app_class": _APP_CLASS},
    bounds=(0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 21600, 86400),
)
LOCK_WAITS = Counter(
    "lock_waits",
    "Locks that were busy. handed-over: the holder before called the waiter; found-free: nobody did.",
    {"lock": _LOCK, "outcome": ("handed-over", "found-free", "gave-up", "did-not-wait")},
)
LOCK_WAIT_SECONDS = Histogram("lock_wait_seconds", "How long jobs waited for a busy lock.", {"lock": _LOCK})
LOCKS_LOST = Counter("locks_lost", "Locks that their holder lost before it had ended.", {"lock": _LOCK})

ALL = (
    LOOKS, LOOK_SECONDS, FETCHES, FETCH_SECONDS, SNAPSHOTS, DELIVERIES, DELIVERY_SECONDS, ACKNOWLEDGED_SECONDS,
    LOCK_WAITS, LOCK_WAIT_SECONDS, LOCKS_LOST,
)  # fmt: skip


@cache
def connection() -> redis.Redis:
    """A client that gives up soon: a run must not wait for Redis only to be counted."""
    return connections.connect_impatiently(timeout=1)


class Counts:
    """What one run adds."""

    def __init__(self) -> None:
        self._numbers: defaultdict[tuple[str, ...], int] = defaultdict(int)
        self._seconds: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def add(self, counter: Counter, *labels: str, by: int = 1) -> None:
        self._numbers[(counter.name, *labels)] += by

    def observe(self, histogram: Histogram, seconds: float, *labels: str) -> None:
        seconds = max(0.0, seconds)
        bucket = histogram.buckets[bisect_left(histogram.bounds, seconds)]
        self._numbers[(histogram.name, *labels, bucket)] += 1
        self._seconds[(histogram.name, *labels, _SUM)] += seconds

    def write(self) -> None:
        """If Redis does not answer, these numbers are lost and the run goes on."""
        if not self._numbers:
            return
        try:
            with connection().pipeline(transaction=False) as pipeline:
                for parts, number in self._numbers.items():
                    pipeline.hincrby(_KEY, "|".join(parts), number)
                for parts, seconds in self._seconds.items():
                    pipeline.hincrbyfloat(_KEY, "|".join(parts), seconds)
                pipeline.execute()
        except redis.RedisError as error:
            log.warning("What this run did is not counted: %s", error)


@contextmanager
def one_run() -> Iterator[Counts]:
    """Written at the end, also of a run that failed."""
    counts = Counts()
    try:
        yield counts
    finally:
        counts.write()


class Totals:
    """All that was counted, as it is in Redis now."""

    def __init__(self, connection: redis.Redis) -> None:
        self._fields = {as_text(field): float(value) for field, value in connection.hgetall(_KEY).items()}

    def count(self, counter: Counter, labels: Labels) -> int:
        return int(self._value(counter.name, *labels))

    def buckets(self, histogram: Histogram, labels: Labels) -> list[tuple[str, float]]:
        """Each bound with the number of observations up to it."""
        total, found = 0, []
        for bound in histogram.buckets:
            total += int(self._value(histogram.name, *labels, bound))
            found.append((bound, float(total)))
        return found

    def sum(self, histogram: Histogram, labels: Labels) -> float:
        return self._value(histogram.name, *labels, _SUM)

    def _value(self, *parts: str) -> float:
        return self._fields.get("|".join(parts), 0.0)
