"""The tick: what is due, oldest first, never more than the backlog holds, and nothing left behind."""

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings
from rq import Queue
from rq.serializers import JSONSerializer

from docora.demo.githost import HostedRepository
from repositories import timing, watches
from repositories.base import queue
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots import manifest, schedule
from snapshots.models import Snapshot
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def reconciled(settings: Settings) -> None:
    queue.connection().set("docora:last-reconciled", "now")


def waiting() -> list[str]:
    return Queue(queue.SNAPSHOTS, connection=queue.connection(), serializer=JSONSerializer).job_ids


@pytest.fixture
def many(db: None) -> list[Repository]:
    """Repositories that have been due for days, the last one for longest."""
    now = timezone.now()
    return Repository.objects.bulk_create(
        Repository(url=f"https://github.com/a/{n}", owner="a", name=str(n), clone_key=f"a/{n}",
                   next_check_at=now - timedelta(hours=n)) for n in range(1, 31)
    )  # fmt: skip


def test_after_a_long_rest_no_more_is_queued_than_the_backlog_holds(many: list[Repository], settings: Settings) -> None:
    settings.SCAN_BACKLOG = 10
    assert schedule.tick() == 10
    assert waiting() == [f"snapshot-{repository.pk}" for repository in reversed(many[20:])]
    assert schedule.tick() == 0
    queue.connection().delete(f"rq:queue:{queue.SNAPSHOTS}")
    assert schedule.tick() == 10
    assert waiting() == [f"snapshot-{repository.pk}" for repository in reversed(many[10:20])]


def test_two_schedulers_ask_once(many: list[Repository]) -> None:
    assert schedule.tick() + schedule.tick() == 30
    assert len(waiting()) == len(set(waiting())) == 30


def test_a_claim_whose_job_is_lost_ends_by_itself(many: list[Repository], settings: Settings) -> None:
    settings.RESCAN_INTERVAL = 0.01
    schedule.tick()
    queue.connection().flushall()
    queue.connection().set("docora:last-reconciled", "now")
    assert schedule.tick() == 30


def pause_after(quiet: timedelta, repository: Repository) -> float:
    Snapshot.objects.all().delete()
    Repository.objects.filter(pk=repository.pk).update(sequence=1)
    Snapshot.objects.create(
        repository=repository, sequence=1, commit_sha="1" * 40, files=0, bytes=0, taken_at=timezone.now() - quiet
    )
    timing.plan_next_look(repository, last_change=manifest.last_change(repository))
    planned = Repository.objects.get(pk=repository.pk)
    assert planned.last_checked_at
    return (planned.next_check_at - planned.last_checked_at).total_seconds()


def test_a_repository_that_changes_is_looked_at_more_often(many: list[Repository]) -> None:
    assert 54 <= pause_after(timedelta(seconds=1), many[0]) <= 60
    assert 180 <= pause_after(timedelta(seconds=2000), many[0]) <= 200
    assert 270 <= pause_after(timedelta(days=30), many[0]) <= 300


def test_looks_are_spread_by_chance(many: list[Repository]) -> None:
    for repository in many:
        timing.plan_next_look(repository, last_change=manifest.last_change(repository))
    assert Repository.objects.values("next_check_at").distinct().count() > 25


def test_a_watch_that_its_worker_left_is_looked_at_again(alice_app: App, remote: HostedRepository, work: Work) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Repository.objects.update(next_check_at=timezone.now() + timedelta(hours=1))
    Watch.objects.update(status=WatchStatus.SCANNING, synced_sequence=0)
    schedule.tick()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.PENDING
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED


def test_reconciliation_is_asked_for_once_in_its_interval() -> None:
    queue.connection().delete("docora:last-reconciled")
    assert schedule.tick() == 1
    assert schedule.tick() == 0
    assert waiting() == ["reconcile"]
