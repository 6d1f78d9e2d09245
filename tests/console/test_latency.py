"""The latency from notice to acknowledgement: of an app, and of all."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from docora.console import latency
from docora.console.display import NOTHING
from docora.console.latency import Latency
from docora.demo.githost import HostedRepository
from repositories import watches
from repositories.models import App, Watch
from snapshots.models import Completion
from tests.support.worker import Work


@pytest.fixture
def watch(alice_app: App, remote: HostedRepository) -> Watch:
    return watches.watch(alice_app, remote.url)


def complete(watch: Watch, *latencies: int | None, age: timedelta = timedelta(0)) -> None:
    now = timezone.now()
    zeros = dict.fromkeys(("created", "updated", "deleted", "parked", "left_out", "files", "sequence"), 0)
    Completion.objects.bulk_create(
        Completion(
            watch=watch, app=watch.app, latency_ms=each, completed_at=now - age, noticed_at=now, pending=False, **zeros
        )
        for each in latencies
    )


@pytest.mark.django_db
def test_it_is_the_median_the_95th_percentile_and_the_worst(watch: Watch) -> None:
    complete(watch, *range(1, 101), None)
    complete(watch, 1_000_000, age=timedelta(days=2))
    assert latency.overall() == Latency(commits=100, median=50, p95=95, worst=100)
    complete(watch, 7)
    assert latency.overall().median == 50
    assert latency.overall().worst == 100


@pytest.mark.django_db
def test_it_is_that_of_one_app(watch: Watch, bob_app: App) -> None:
    complete(watch, 1500)
    assert latency.of_app(watch.app).text == "half within 1.5 s, 95 % within 1.5 s, worst 1.5 s, of 1 commit"
    assert latency.of_app(bob_app).text == NOTHING


@pytest.mark.django_db
def test_it_reads_a_bounded_number_of_the_newest_from_an_index(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latency, "_MOST", 10)
    complete(watch, *[9] * 50, age=timedelta(hours=1))
    complete(watch, *[1] * 10)
    assert latency.overall() == Latency(commits=10, median=1, p95=1, worst=1)
    with CaptureQueriesContext(
        connection,
    ) as captured:
        latency.of_app(watch.app)
    assert len(captured) == 1
    rows = Completion.objects.filter(app=watch.app, completed_at__gte=timezone.now(), latency_ms__isnull=False)
    plan = rows.order_by("-completed_at")[:10].explain()
    if connection.vendor == "sqlite":
        assert "completion_app_completed" in plan
        assert "TEMP B-TREE" not in plan


@pytest.mark.django_db(transaction=True)
def test_the_console_shows_it(watch: Watch, remote: HostedRepository, work: Work, admin_client: Client) -> None:
    work()
    overview, page = reverse("admin:index"), reverse("admin:repositories_app_change", args=[watch.app_id])
    assert "no change in the last day" in admin_client.get(overview).content.decode()
    remote.commit({"README.md": "# New\n"})
    watches.request_snapshot(watch.repository)
    work()
    for url in (overview, page):
        assert "of 1 commit" in admin_client.get(url).content.decode()
