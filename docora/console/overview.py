"""The first page: how much there is, what needs attention now, and how the last hour and the last day went."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import redis
from django.db.models import Count, Max, Q
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html

from docora import condition
from docora.console import cures, disk, latency, states, statistics
from docora.console.base import may_operate as may
from docora.console.charts import Chart, Point, chart
from docora.console.display import (
    NOTHING,
    ago,
    list_url,
    milliseconds,
    number,
    percent,
    plural,
    row_url,
    size,
    span,
    title_of,
)
from docora.console.states import State, Tone
from docora.console.statistics import Tally
from repositories import circuit, watch_state
from repositories.base import pulse, queue
from repositories.errors import EndpointDisabled, hint_for
from repositories.models import App, Repository, Watch
from snapshots.models import Delivery, Parked

_MOST = 6
# Seconds after which a job that waits is shown as late.
_LATE = 300
_USUAL = ("failed", "scanning", "pending", "synced")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    title: str
    value: str
    detail: object = ""
    url: str = ""
    tone: Tone = "calm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One thing that needs a person, why, and the button that may cure it."""

    subject: str
    url: str
    reason: str
    hint: object
    since: object = ""
    button: str = ""
    button_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubles:
    title: str
    count: int
    url: str
    shown: list[Trouble]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    tiles: list[Tile]
    states: list[tuple[State, int, str]]
    troubles: list[Troubles]
    charts: list[Chart]


def look(request: HttpRequest) -> Overview:
    """Only what this user may see; buttons, and links to them, only for users who may press them."""
    if not request.user.has_perm("repositories.view_watch"):
        return Overview(tiles=[], states=[], troubles=[], charts=[])
    may_operate = may(request)
    hour, day = statistics.last_hour_and_day()
    stock = _Stock(
        apps=App.objects.aggregate(total=Count("pk"), disabled=Count("pk", filter=~Q(disabled_at=None))),
        repositories=Repository.objects.aggregate(
            total=Count("pk"), open=Count("pk", filter=~Q(circuit_open_until=None))
        ),
    )
    return Overview(
        tiles=[*_tiles_of(stock), *_flow(statistics.total(hour.values()), statistics.total(day.values())), *_machine()],
        states=_states(),
        troubles=[troubles for troubles in _troubles(stock, may_operate=may_operate) if troubles.count],
        charts=_charts(hour, day),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stock:
    """Counted once for the tiles and the troubles."""

    apps: dict[str, int]
    repositories: dict[str, int]


def _tiles_of(stock: _Stock) -> Iterator[Tile]:
    yield Tile(
        title="Apps",
        value=number(stock.apps["total"]),
        detail=f"{number(stock.apps['disabled'])} disabled",
        url=list_url(App),
        tone="bad" if stock.apps["disabled"] else "good",
    )
    yield Tile(
        title="Repositories",
        value=number(stock.repositories["total"]),
        detail=plural(stock.repositories["open"], "open circuit"),
        url=list_url(Repository),
        tone="bad" if stock.repositories["open"] else "good",
    )


def _flow(hour: Tally, day: Tally) -> Iterator[Tile]:
    yield Tile(
        title="Deliveries, last hour",
        value=number(hour.total),
        detail=f"{hour.total / 60:.1f} a minute, {number(day.total)} in a day",
        url=list_url(Delivery),
    )
    yield Tile(
        title="Accepted, last hour",
        value=percent(hour.success_rate),
        detail=f"{percent(day.success_rate)} in a day",
        url=list_url(Delivery, outcome="refused", when="hour"),
        tone="bad" if hour.success_rate is not None and hour.success_rate < 95 else "good",
    )
    yield Tile(
        title="95 % of answers within",
        value=hour.shown_percentile(95),
        detail=f"half within {hour.shown_percentile(50)}; in a day {day.shown_percentile(95)};"
        f" {number(hour.unanswered)} without an answer",
    )
    changes = latency.overall()
    yield Tile(title="Noticed to acknowledged, median", value=milliseconds(changes.median), detail=changes.detail)


def _machine() -> Iterator[Tile]:
    url = reverse("admin:django_rq_dashboard_changelist")
    try:
        yield from _queue(url)
        yield _disk()
    except redis.RedisError:
        yield Tile(title="Queue", value="unreachable", detail="Redis does not answer", url=url, tone="bad")


def _queue(url: str) -> Iterator[Tile]:
    depth, oldest, workers = sum(map(queue.length, queue.ALL)), pulse.seconds_waited(), pulse.count_workers()
    waiting = f"oldest waits for {span(timedelta(seconds=oldest))}" if oldest else "nothing waits"
    late = oldest > _LATE
    yield Tile(title="Queue", value=plural(depth, "job"), detail=waiting, url=url, tone="warn" if late else "good")
    detail, untended = "alive" if workers else "nothing is fetched or delivered", pulse.untended_queues()
    if workers and untended:
        detail = f"none takes {', '.join(untended)}"
    is_well = bool(workers) and not untended
    yield Tile(title="Workers", value=number(workers), detail=detail, url=url, tone="good" if is_well else "bad")


def _disk() -> Tile:
    measured = disk.total()
    return Tile(
        title="Clones on disk",
        value=size(measured.size) if measured else NOTHING,
        detail=ago(measured.at) if measured else "is being measured",
    )


def _states() -> list[tuple[State, int, str]]:
    """How many watches are in each state: the usual ones always, the others where there are any."""
    counts = states.WATCH.count()
    return [
        (state, counts.get(state.name, 0), list_url(Watch, state=state.name))
        for state in states.WATCH.all
        if state.name in counts or state.name in _USUAL
    ]


def _troubles(stock: _Stock, *, may_operate: bool) -> Iterator[Troubles]:
    yield _itself()
    # The watches of a disabled app are its one trouble, below.
    failed = Watch.objects.filter(watch_state.failing(), app__disabled_at=None)
    yield Troubles(
        title="Failed watches",
        count=failed.count(),
        url=list_url(Watch, trouble="failing"),
        shown=[
            _failed(watch, may_operate) for watch in failed.select_related("app", "repository").order_by("-pk")[:_MOST]
        ],
    )
    circuits = Repository.objects.exclude(circuit_open_until=None)
    yield Troubles(
        title="Open circuits",
        count=stock.repositories["open"],
        url=list_url(Repository, state="open"),
        shown=[_circuit(repository, may_operate) for repository in circuits.order_by("circuit_open_until")[:_MOST]],
    )
    yield _disabled(stock.apps["disabled"], may_operate)
    parked = Parked.objects.order_by().values("watch").annotate(files=Count("pk"), newest=Max("pk"))
    yield Troubles(
        title="Parked files",
        count=Parked.objects.count(),
        url=list_url(Parked),
        shown=list(_parked([row["newest"] for row in parked.order_by("-newest")[:_MOST]], may_operate)),
    )


def _itself() -> Troubles:
    """The same checks as /ready, and what the alerts tell of the machine."""
    unmet = {name: outcome for name, outcome in condition.outcomes().items() if outcome != "ok"}
    url = reverse("admin:django_rq_dashboard_changelist")
    shown = [
        Trouble(subject=name, url=url, reason=reason, hint=condition.HINTS[name]) for name, reason in unmet.items()
    ]
    shown += [
        Trouble(subject=name, url=url, reason=reason, hint=hint) for name, reason, hint in condition.other_troubles()
    ]
    return Troubles(title="Docora itself", count=len(shown), url=url, shown=shown)


def _failed(watch: Watch, may_operate: bool) -> Trouble:
    return Trouble(
        subject=title_of(watch),
        url=row_url(watch),
        reason=watch.last_error,
        hint=cures.linked(hint_for(watch.last_error_code), cures.of_watch(watch), may_operate=may_operate),
        since=format_html("in sync {}", ago(watch.synced_at)) if watch.synced_at else "never in sync",
        button="Retry" if may_operate else "",
        button_url=reverse("admin:repositories_watch_retry", args=[watch.pk]),
    )


def _circuit(repository: Repository, may_operate: bool) -> Trouble:
    probe_at, now = circuit.next_probe(repository), timezone.now()
    return Trouble(
        subject=str(repository),
        url=row_url(repository),
        reason=repository.last_error,
        hint=cures.linked(
            hint_for(repository.last_error_code), cures.Subject(repository=repository), may_operate=may_operate
        ),
        since=f"probe in {span(probe_at - now)}" if probe_at and probe_at > now else "probe is due",
        button="Reset circuit" if may_operate else "",
        button_url=reverse("admin:repositories_repository_reset_circuit", args=[repository.pk]),
    )


def _disabled(count: int, may_operate: bool) -> Troubles:
    apps = App.objects.exclude(disabled_at=None).order_by("name")
    shown = [
        Trouble(
            subject=app.name,
            url=row_url(app),
            reason=app.disabled_reason,
            hint=cures.linked(EndpointDisabled.hint, cures.Subject(app=app), may_operate=may_operate),
            since=ago(app.disabled_at),
            button="Enable" if may_operate else "",
            button_url=reverse("admin:repositories_app_enable", args=[app.pk]),
        )
        for app in apps[:_MOST]
    ]
    return Troubles(title="Disabled endpoints", count=count, url=list_url(App, state="disabled"), shown=shown)


def _parked(ids: list[int], may_operate: bool) -> Iterator[Trouble]:
    """The newest of each watch stands for all of them."""
    rows = Parked.objects.filter(pk__in=ids).select_related("watch__app", "watch__repository", "file").order_by("-pk")
    for parked in rows:
        yield Trouble(
            subject=f"{parked.file.path} for {parked.watch.app.name}",
            url=row_url(parked.watch),
            reason=parked.reason,
            hint=cures.linked(states.WATCH.named("parked").cure, cures.of_watch(parked.watch), may_operate=may_operate),
            since=ago(parked.parked_at),
        )


def _charts(hour: dict[datetime, Tally], day: dict[datetime, Tally]) -> list[Chart]:
    snapshots = statistics.snapshots_by_hour()
    return [
        chart(
            "Deliveries per minute",
            _points(hour, "%H:%M UTC"),
            unit="a minute",
            first="an hour ago",
            last="now",
            legend=("accepted", "failed"),
        ),
        chart(
            "Deliveries per hour",
            _points(day, "%H:00 UTC"),
            unit="an hour",
            first="a day ago",
            last="now",
            legend=("accepted", "failed"),
        ),
        chart(
            "95 % of answers within",
            [
                Point(title=f"{at:%H:00 UTC}: {tally.shown_percentile(95)}", good=_height(tally))
                for at, tally in day.items()
            ],
            unit="",
            first="a day ago",
            last="now",
            legend=("of the attempts of an hour that were answered",),
            shown=milliseconds,
            most=statistics.BEYOND if any(tally.is_beyond(95) for tally in day.values()) else "",
        ),
        chart(
            "Snapshots per hour",
            [Point(title=f"{at:%H:00 UTC}: {number(count)}", good=count) for at, count in snapshots.items()],
            unit="an hour",
            first="a day ago",
            last="now",
            legend=("snapshots",),
        ),
    ]


def _height(tally: Tally) -> int:
    """The height of an hour's bar; what took longer than the last bound is drawn up to that bound."""
    return statistics.LAST_BOUND if tally.is_beyond(95) else tally.percentile(95) or 0


def _points(tallies: dict[datetime, Tally], clock: str) -> list[Point]:
    return [
        Point(
            title=f"{at:{clock}}: {number(tally.accepted)} accepted, {number(tally.failed)} failed",
            good=tally.accepted,
            bad=tally.failed,
        )
        for at, tally in tallies.items()
    ]
