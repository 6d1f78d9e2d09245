"""Deliveries and snapshots counted over time.

A row's minute and hour are the beginning of its time as text, which both databases cut out of it quickly. An hour
that is over does not change any more: it is counted once and kept in Redis, so a day costs what an hour costs.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

import redis
from django.db.models import Count, Q, QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.utils import timezone

from repositories.base import queue
from snapshots.models import ACCEPTED, Delivery, Snapshot

# A row is in one of the classes up to a bound; a percentile is the bound of the class where it falls.
_BOUNDS = (50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
_KEPT_FOR = timedelta(days=2)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many attempts there were, how many were accepted, and how long they took."""

    total: int = 0
    accepted: int = 0
    within: tuple[int, ...] = (0,) * len(_BOUNDS)

    def __add__(self, other: Self) -> "Tally":
        within = tuple(a + b for a, b in zip(self.within, other.within, strict=True))
        return Tally(self.total + other.total, self.accepted + other.accepted, within)

    @property
    def failed(self) -> int:
        return self.total - self.accepted

    @property
    def success_rate(self) -> float | None:
        return 100 * self.accepted / self.total if self.total else None

    def percentile(self, percent: int) -> int | None:
        """Milliseconds within which that share of the attempts was answered, rounded up to a bound."""
        wanted = self.total * percent / 100
        found = (bound for bound, count in zip(_BOUNDS, self.within, strict=True) if count >= wanted)
        return next(found, _BOUNDS[-1]) if self.total else None


def total(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, start=Tally())


def last_hour() -> dict[datetime, Tally]:
    """By minute, the running one last."""
    minute = timezone.now().replace(second=0, microsecond=0)
    moments = [minute - timedelta(minutes=ago) for ago in range(59, -1, -1)]
    found = _tallies(_since(moments[0]), length=len("2026-01-01 00:00"))
    return {moment: found.get(f"{moment:%Y-%m-%d %H:%M}", Tally()) for moment in moments}


def last_day() -> dict[datetime, Tally]:
    """By hour, the running one last."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    moments = [hour - timedelta(hours=ago) for ago in range(23, -1, -1)]
    found = _remembered(moments[:-1])
    missing = [moment for moment in moments if moment not in found]
    rows = _since(missing[0]) if len(missing) > 1 else _since(hour)
    fresh = _tallies(rows, length=len("2026-01-01 00"))
    counted = {moment: fresh.get(f"{moment:%Y-%m-%d %H}", Tally()) for moment in missing}
    # Rows of the last moments of an hour may be written a little after it.
    settled = timezone.now() - timedelta(hours=1, minutes=2)
    _remember({moment: tally for moment, tally in counted.items() if moment <= settled})
    return {moment: found.get(moment) or counted[moment] for moment in moments}


def snapshots_by_hour() -> dict[datetime, int]:
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    moments = [hour - timedelta(hours=ago) for ago in range(23, -1, -1)]
    rows = Snapshot.objects.filter(taken_at__gte=moments[0]).annotate(hour=_beginning("taken_at", 13))
    found = dict(rows.order_by().values_list("hour").annotate(Count("pk")))
    return {moment: found.get(f"{moment:%Y-%m-%d %H}", 0) for moment in moments}


def by_app(app_ids: Iterable[int], since: datetime) -> dict[int, Tally]:
    rows = _since(since).filter(watch__app__in=list(app_ids)).order_by().values_list("watch__app")
    counted = rows.annotate(attempts=Count("pk"), accepted=Count("pk", filter=ACCEPTED))
    return {app_id: Tally(attempts, accepted) for app_id, attempts, accepted in counted}


def _since(moment: datetime) -> QuerySet[Delivery]:
    return Delivery.objects.filter(attempted_at__gte=moment)


def _beginning(column: str, length: int) -> Left:
    return Left(Cast(column, TextField()), length)


def _tallies(rows: QuerySet[Delivery], *, length: int) -> dict[str, Tally]:
    """One pass over the index of times; every count is of the same rows."""
    counts: dict[str, Any] = {f"within_{bound}": Count("pk", filter=Q(milliseconds__lte=bound)) for bound in _BOUNDS}
    grouped = rows.order_by().annotate(bucket=_beginning("attempted_at", length)).values_list("bucket")
    counted = grouped.annotate(total=Count("pk"), accepted=Count("pk", filter=ACCEPTED), **counts)
    return {bucket: Tally(attempts, accepted, tuple(within)) for bucket, attempts, accepted, *within in counted}


def _key(moment: datetime) -> str:
    return f"docora:deliveries-of-hour:{moment:%Y-%m-%dT%H}"


def _remembered(moments: list[datetime]) -> dict[datetime, Tally]:
    try:
        values = queue.connection().mget([_key(moment) for moment in moments])
    except redis.RedisError:
        return {}
    found = {moment: json.loads(value) for moment, value in zip(moments, values, strict=True) if value}
    return {moment: Tally(facts[0], facts[1], tuple(facts[2])) for moment, facts in found.items()}


def _remember(tallies: dict[datetime, Tally]) -> None:
    try:
        for moment, tally in tallies.items():
            facts = [tally.total, tally.accepted, tally.within]
            queue.connection().set(_key(moment), json.dumps(facts), ex=_KEPT_FOR)
    except redis.RedisError:
        return
