"""Deliveries and snapshots counted over time.

A row's minute and hour are the beginning of its time as text, which both databases cut out of it quickly. A minute or
an hour that is over does not change any more: it is counted once and kept in Redis, for all and for each app. So a day
costs what the last minutes cost.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

import redis
from django.db.models import Count, Q, TextField
from django.db.models.functions import Cast, Left
from django.utils import timezone

from docora.console.display import milliseconds, span
from repositories.base import queue
from snapshots.models import ACCEPTED, Delivery, Snapshot

# An answer is in one of the classes up to a bound; a percentile is the bound of the class where it falls.
_BOUNDS = (50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000)
LAST_BOUND = _BOUNDS[-1]
BEYOND = f"more than {span(timedelta(milliseconds=LAST_BOUND))}"
# Rows of the last moments of a minute may be written a little after it.
_SETTLING = timedelta(minutes=2)
# So many minutes cover every hour that is not settled yet.
_MINUTES = 62
_ALL = "all"


@dataclass(frozen=True, slots=True)
class Tally:
    """How many attempts there were, how many were accepted and answered, and how long the answers took."""

    total: int = 0
    accepted: int = 0
    answered: int = 0
    within: tuple[int, ...] = (0,) * len(_BOUNDS)

    def __add__(self, other: Self) -> "Tally":
        within = tuple(a + b for a, b in zip(self.within, other.within, strict=True))
        return Tally(self.total + other.total, self.accepted + other.accepted, self.answered + other.answered, within)

    @property
    def failed(self) -> int:
        return self.total - self.accepted

    @property
    def success_rate(self) -> float | None:
        return 100 * self.accepted / self.total if self.total else None

    @property
    def unanswered(self) -> int:
        return self.total - self.answered

    def percentile(self, percent: int) -> int | None:
        """Milliseconds within which that share of the answers came, rounded up to a bound; None without answers, and
        if it is more than the last bound."""
        wanted = self.answered * percent / 100
        found = (bound for bound, count in zip(_BOUNDS, self.within, strict=True) if count >= wanted)
        return next(found, None) if self.answered else None

    def is_beyond(self, percent: int) -> bool:
        """Whether that share of the answers took longer than the last bound."""
        return bool(self.answered) and self.percentile(percent) is None

    def shown_percentile(self, percent: int) -> str:
        return BEYOND if self.is_beyond(percent) else milliseconds(self.percentile(percent))


def total(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, start=Tally())


@dataclass(frozen=True, slots=True)
class _Unit:
    span: timedelta
    text: str
    kept_for: timedelta


_MINUTE = _Unit(timedelta(minutes=1), "%Y-%m-%d %H:%M", timedelta(hours=3))
_HOUR = _Unit(timedelta(hours=1), "%Y-%m-%d %H", timedelta(days=2))
# By the moment at which a minute or an hour began: the tallies of all, and of each app by its id.
_Tallies = dict[datetime, dict[str, Tally]]


def last_hour_and_day() -> tuple[dict[datetime, Tally], dict[datetime, Tally]]:
    """The last hour by minute and the last day by hour; the current minute and hour come last."""
    minutes = _minutes([_ALL])
    hour = list(minutes.items())[-60:]
    day = _hours([_ALL], minutes).items()
    return {at: tallies[_ALL] for at, tallies in hour}, {at: tallies[_ALL] for at, tallies in day}


def last_day_by_app(app_ids: Iterable[int]) -> dict[int, Tally]:
    """The tally of each app over the same hours."""
    ids = list(app_ids)
    names = [str(app_id) for app_id in ids]
    hours = _hours(names, _minutes(names)).values()
    return {app_id: total(tallies[str(app_id)] for tallies in hours) for app_id in ids}


def snapshots_by_hour() -> dict[datetime, int]:
    hour = _begun(_HOUR)
    moments = [hour - timedelta(hours=ago) for ago in range(23, -1, -1)]
    rows = Snapshot.objects.filter(taken_at__range=(moments[0], hour + _HOUR.span))
    found = dict(rows.annotate(hour=_beginning("taken_at", _HOUR)).order_by().values_list("hour").annotate(Count("pk")))
    return {moment: found.get(moment.strftime(_HOUR.text), 0) for moment in moments}


def _hours(names: list[str], minutes: _Tallies) -> _Tallies:
    """What is not settled yet is the sum of its minutes."""
    hour = _begun(_HOUR)
    moments = [hour - timedelta(hours=ago) for ago in range(23, -1, -1)]
    found = _tallies(_HOUR, [moment for moment in moments if _is_settled(_HOUR, moment)], names)
    for moment in moments[len(found) :]:
        parts = [tallies for minute, tallies in minutes.items() if moment <= minute < moment + _HOUR.span]
        found[moment] = {name: total(part[name] for part in parts) for name in names}
    return found


def _minutes(names: list[str]) -> _Tallies:
    minute = _begun(_MINUTE)
    return _tallies(_MINUTE, [minute - timedelta(minutes=ago) for ago in range(_MINUTES - 1, -1, -1)], names)


def _begun(unit: _Unit) -> datetime:
    now = timezone.now()
    return now.replace(minute=now.minute if unit is _MINUTE else 0, second=0, microsecond=0)


def _is_settled(unit: _Unit, moment: datetime) -> bool:
    return moment + unit.span + _SETTLING <= timezone.now()


def _tallies(unit: _Unit, moments: list[datetime], names: list[str]) -> _Tallies:
    """Every moment has a tally for each name, in the order of the moments."""
    found = _remembered(unit, moments, names)
    if missing := [moment for moment in moments if moment not in found]:
        counted = _count(unit, missing)
        _remember(unit, {moment: tallies for moment, tallies in counted.items() if _is_settled(unit, moment)})
        found |= counted
    return {moment: {name: found[moment].get(name, Tally()) for name in names} for moment in moments}


def _count(unit: _Unit, moments: list[datetime]) -> _Tallies:
    """One pass over the index of times; every count is of the same rows."""
    # A range with an end: without statistics, PostgreSQL takes one without an end for a third of the table.
    rows = Delivery.objects.filter(attempted_at__range=(moments[0], moments[-1] + unit.span)).order_by()
    counts: dict[str, Any] = {
        f"within_{bound}": Count("pk", filter=Q(status__isnull=False, milliseconds__lte=bound)) for bound in _BOUNDS
    }
    grouped = rows.annotate(bucket=_beginning("attempted_at", unit)).values_list("bucket", "watch__app")
    # Count("status") leaves out the attempts without an answer.
    counted = grouped.annotate(
        total=Count("pk"), accepted=Count("pk", filter=ACCEPTED), answered=Count("status"), **counts
    )
    named = {moment.strftime(unit.text): moment for moment in moments}
    found: _Tallies = {moment: {_ALL: Tally()} for moment in moments}
    for bucket, app_id, attempts, accepted, answered, *within in counted:
        if moment := named.get(bucket):
            tally = found[moment][str(app_id)] = Tally(attempts, accepted, answered, tuple(within))
            found[moment][_ALL] += tally
    return found


def _beginning(column: str, unit: _Unit) -> Left:
    return Left(Cast(column, TextField()), len(timezone.now().strftime(unit.text)))


def _key(unit: _Unit, moment: datetime) -> str:
    return f"docora:tally:{moment.strftime(unit.text)}"


def _remembered(unit: _Unit, moments: list[datetime], names: list[str]) -> _Tallies:
    try:
        with queue.connection().pipeline(transaction=False) as pipeline:
            for moment in moments:
                pipeline.hmget(_key(unit, moment), [_ALL, *names])
            answers = pipeline.execute()
    except redis.RedisError:
        return {}
    return {
        moment: {name: _decode(value) for name, value in zip([_ALL, *names], values, strict=True) if value}
        for moment, values in zip(moments, answers, strict=True)
        if values[0]
    }


def _decode(value: bytes) -> Tally:
    attempts, accepted, answered, within = json.loads(value)
    return Tally(attempts, accepted, answered, tuple(within))


def _remember(unit: _Unit, found: _Tallies) -> None:
    try:
        with queue.connection().pipeline(transaction=False) as pipeline:
            for moment, tallies in found.items():
                facts: dict[Any, Any] = {
                    name: json.dumps([tally.total, tally.accepted, tally.answered, tally.within])
                    for name, tally in tallies.items()
                }
                pipeline.hset(_key(unit, moment), mapping=facts)
                pipeline.expire(_key(unit, moment), unit.kept_for)
            pipeline.execute()
    except redis.RedisError:
        return
