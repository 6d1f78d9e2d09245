"""The overview: what there is, what needs attention, how deliveries went; and what each page costs the database."""

import json
import re
from datetime import timedelta

import pytest
import redis
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from rq import Queue
from rq.serializers import JSONSerializer

from benchmarks.populate import populate
from docora import condition
from docora.console import disk, display, statistics
from docora.console.statistics import Tally
from repositories import accounts
from repositories.base import queue
from repositories.git import clones
from repositories.models import App, Repository, Watch
from snapshots.models import Delivery, Snapshot

pytestmark = pytest.mark.django_db

MODELS: list[type[Model]] = [App, Repository, Watch, Snapshot, Delivery]
# Of a warm page, and of a cold one: the first of a process, of a new Redis. Cold are the check of the migrations (3
# queries, once for a process), the counts of the hours that are over (1, kept in Redis) and Django's content types (1).
QUERIES = {
    "/admin/": (19, 23),
    "/admin/repositories/app/": (7, 8),
    "/admin/repositories/app/1/change/": (10, 12),
    "/admin/repositories/repository/": (6, 6),
    "/admin/repositories/repository/1/change/": (8, 9),
    "/admin/repositories/watch/": (8, 8),
    "/admin/repositories/watch/1/change/": (11, 12),
    "/admin/snapshots/snapshot/": (4, 4),
    "/admin/snapshots/snapshot/1/change/": (7, 8),
    "/admin/snapshots/delivery/": (5, 5),
    "/admin/snapshots/delivery/?q=cedar": (6, 6),
    "/admin/snapshots/delivery/1/change/": (8, 9),
    "/admin/snapshots/parked/": (4, 4),
    "/admin/admin/logentry/": (5, 5),
}


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("admin"))
    return client


@pytest.fixture
def watch() -> Watch:
    credentials = accounts.onboard("Alice's search", "https://search.example.com")
    repository = Repository.objects.create(
        url="https://github.com/acme/handbook", owner="acme", name="handbook", clone_key="acme/handbook"
    )
    return Watch.objects.create(app=App.objects.get(public_id=credentials.app_id), repository=repository)


def attempt(watch: Watch, *, ago: timedelta, status: int | None = 200, milliseconds: int = 20) -> None:
    moment = timezone.now() - ago
    Delivery.objects.create(watch=watch, event="create", milliseconds=milliseconds, status=status, attempted_at=moment)


def _tile(page: str, title: str) -> tuple[str, str]:
    found = re.search(rf"{re.escape(title)}</span><b>(.*?)</b><small>(.*?)</small>", page)
    assert found
    return found[1], found[2]


def _chart(page: str, title: str) -> str:
    charts: list[str] = re.findall(r"<figure.*?</figure>", page, re.S)
    return next(figure for figure in charts if title in figure)


def overview(client: Client) -> str:
    return client.get(reverse("admin:index")).content.decode()


def test_made_up_data_shows_troubles_with_reason_hint_and_button(admin: Client) -> None:
    populate(apps=20, repositories=200, files=2000)
    page = overview(admin)
    for words in ("Failed watches", "503 Service Unavailable", "Ping it, look at its deliveries", "Open circuits"):
        assert words in re.sub(r"<[^>]*>", "", page)
    assert "Disabled endpoints" in page
    assert "413 Request Entity Too Large" in page
    assert page.count(">Retry</button>") == 3
    assert ">Enable</button>" in page


def queries_of(client: Client, url: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200, url
    return len(captured)


@pytest.mark.parametrize("size", [1, 3])
def test_no_page_asks_more_of_the_database_when_there_is_more_in_it(
    admin: Client, size: int, fake_redis: redis.Redis
) -> None:
    populate(apps=20 * size, repositories=120 * size, files=600 * size)
    first = {model._meta.model_name: model._default_manager.order_by("pk")[0].pk for model in MODELS}
    asked = {}
    for page in QUERIES:
        url = page
        for name, pk in first.items():
            url = url.replace(f"/{name}/1/", f"/{name}/{pk}/")
        condition._migrations.cache_clear()
        ContentType.objects.clear_cache()
        fake_redis.flushall()
        cold, *warm = (queries_of(admin, url) for _ in range(3))
        assert warm[0] == warm[1]
        asked[page] = (warm[0], cold)
    assert asked == QUERIES


def test_a_queue_that_no_worker_takes_is_named(admin: Client) -> None:
    queue.connection().sadd("rq:workers", "rq:worker:somebody")
    queue.connection().hset("rq:worker:somebody", mapping={"birth": "2026-01-01T00:00:00Z", "queues": "snapshots"})
    queue.connection().sadd("rq:workers:snapshots", "rq:worker:somebody")
    assert "none takes" not in overview(admin)
    Queue(queue.SLOW_DELIVERIES, connection=queue.connection(), serializer=JSONSerializer).enqueue("builtins.abs", 1)
    assert "none takes deliveries-slow" in overview(admin)


def test_what_the_alerts_tell_of_the_machine_needs_attention_here_too(
    admin: Client, fake_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repositories.base.pulse.count_workers", lambda *_, **__: 1)
    assert "nearly full" not in overview(admin)
    fake_redis.hset("docora:disks", "disk-host", json.dumps([10**9, 100 * 10**9, timezone.now().timestamp()]))
    shown = overview(admin)
    assert "disk-host" in shown
    assert "disk nearly full: 1.0 % of 100.0 GB are free" in shown
    assert "Nothing needs attention" not in shown
    monkeypatch.setattr("repositories.base.pulse.count_workers", lambda *_, **__: 0)
    assert "no worker takes urgent, snapshots, deliveries, deliveries-slow" in overview(admin)


def test_populate_refuses_a_database_in_use(watch: Watch) -> None:
    with pytest.raises(ValueError, match="not empty"):
        populate(apps=1, repositories=1, files=1)


def test_deliveries_are_counted_by_minute_and_by_hour(watch: Watch) -> None:
    attempt(watch, ago=timedelta(), milliseconds=40)
    attempt(watch, ago=timedelta(minutes=5), status=500, milliseconds=400)
    attempt(watch, ago=timedelta(hours=3), status=None, milliseconds=30_000)
    attempt(watch, ago=timedelta(days=2))
    minutes, hours = statistics.last_hour_and_day()
    hour, day = statistics.total(minutes.values()), statistics.total(hours.values())
    assert (hour.total, hour.accepted, hour.percentile(50), hour.percentile(95)) == (2, 1, 50, 500)
    assert (day.total, day.failed, day.unanswered, day.percentile(99)) == (3, 2, 1, 500)
    newest = list(minutes.values())
    assert (len(newest), newest[-1].total, sum(tally.failed for tally in newest)) == (60, 1, 1)


def test_the_times_of_answers_are_of_attempts_that_were_answered(admin: Client, watch: Watch) -> None:
    attempt(watch, ago=timedelta(minutes=5), milliseconds=400)
    for took in (1, 1, 30_000):  # connections that were refused, and one that timed out
        attempt(watch, ago=timedelta(minutes=5), status=None, milliseconds=took)
    page = overview(admin)
    assert _tile(page, "95 % of answers within") == (
        "500 ms",
        "half within 500 ms; in a day 500 ms; 3 without an answer",
    )
    assert "up to 500 ms" in _chart(page, "95 % of answers within")


def test_answers_that_took_longer_than_the_last_class_are_not_said_to_be_in_it(admin: Client, watch: Watch) -> None:
    attempt(watch, ago=timedelta(minutes=5), milliseconds=40)
    attempt(watch, ago=timedelta(minutes=5), milliseconds=45_000)
    page = overview(admin)
    assert _tile(page, "95 % of answers within") == (
        "more than 30 s",
        "half within 50 ms; in a day more than 30 s; 0 without an answer",
    )
    chart = _chart(page, "95 % of answers within")
    assert re.search(r"<small>more than 30 s</small>", chart)
    assert re.search(r"<title>\d\d:00 UTC: more than 30 s</title>", chart)


@pytest.mark.parametrize(
    ("share", "shown"),
    [(None, "-"), (0.0, "0 %"), (0.0004, "0.01 %"), (33.3333, "33.33 %"), (99.9999, "99.99 %"), (100.0, "100 %")],
)
def test_nearly_all_is_not_all(share: float | None, shown: str) -> None:
    assert display.percent(share) == shown


def test_an_hour_that_is_over_is_counted_once(watch: Watch) -> None:
    attempt(watch, ago=timedelta(hours=3))
    _, before = statistics.last_hour_and_day()
    attempt(watch, ago=timedelta(hours=3))
    attempt(watch, ago=timedelta())
    _, after = statistics.last_hour_and_day()
    assert statistics.total(after.values()).total == 2
    assert list(after.values())[:-1] == list(before.values())[:-1]


def test_each_app_has_its_own_share_of_the_day(watch: Watch, bob_app: App) -> None:
    attempt(watch, ago=timedelta())
    attempt(watch, ago=timedelta(hours=3), status=500)
    attempt(watch, ago=timedelta(days=2))
    for _ in range(2):  # counted, then remembered
        found = statistics.last_day_by_app([watch.app_id, bob_app.pk])
        assert (found[watch.app_id].total, found[watch.app_id].accepted) == (2, 1)
        assert found[bob_app.pk] == Tally()


def test_the_axis_of_each_chart_names_the_time_that_its_bars_cover(admin: Client) -> None:
    before, page, after = timezone.now(), overview(admin), timezone.now()
    charts = re.findall(r"<figure.*?</figure>", page, re.S)
    assert len(charts) == 4
    for chart in charts:
        bars = re.findall(r"<title>(\d\d:\d\d) UTC: ", chart)
        axis = re.findall(r"<span>([^<]*)</span>", chart)[-2:]
        length, begins, clock = {"an hour ago": (60, 59, "%H:%M"), "a day ago": (24, 23 * 60, "%H:00")}[axis[0]]
        spans = [(f"{now - timedelta(minutes=begins):{clock}}", f"{now:{clock}}") for now in (before, after)]
        assert len(bars) == length
        assert (bars[0], bars[-1]) in spans
        assert axis[1] == "now"


def test_a_tally_of_nothing_has_no_rate() -> None:
    assert (Tally().success_rate, Tally().percentile(95)) == (None, None)


def test_the_overview_opens_while_redis_is_away(admin: Client, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "repositories.base.connections.connect", lambda **_: redis.Redis.from_url("unix:///nowhere.sock", retry=None)
    )
    queue.connection.cache_clear()
    assert "Redis does not answer" in overview(admin)


def test_clones_are_measured_by_a_worker(
    admin: Client, watch: Watch, settings: object, tmp_path: object, django_capture_on_commit_callbacks: object
) -> None:
    settings.REPOS_BASE_PATH = tmp_path  # type: ignore[attr-defined]
    folder = clones.path_of(watch.repository.clone_key)
    folder.mkdir(parents=True)
    (folder / "pack").write_bytes(b"x" * 100_000)
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        assert "is being measured" in overview(admin)
    assert queue.is_alive("measure-clones")
    disk.measure()
    measured = disk.of(watch.repository)
    assert measured
    assert 100_000 <= measured.size < 120_000
    assert disk.total() == measured
