"""What grows is trimmed: half a year passes, and no table is larger than its setting allows."""

from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import connection
from django.db.models import F, Model
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories.git import clones
from repositories.models import Watch
from snapshots import look, manifest, reconcile, retention
from snapshots.models import Delivered, Delivery, File, FileVersion, Snapshot
from snapshots.schedule import tick
from tests.support.pins import age_pins
from tests.support.service import ROOT
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)

WEEKS, KEPT_DAYS = 24, 28
KEPT_WEEKS = KEPT_DAYS // 7
# Every row with a time; what the columns mean is that the row gets older.
TIMES: dict[type[Model], str] = {
    Delivery: "attempted_at",
    Snapshot: "taken_at",
    LogEntry: "action_time",
    Session: "expire_date",
}


def pass_time(span: timedelta) -> None:
    """A clock that runs ahead is the same as rows that get older."""
    for model, column in TIMES.items():
        model._default_manager.update(**{column: F(column) - span})


@pytest.fixture
def short_memory(settings: Any) -> None:
    settings.DELIVERY_LOG_DAYS = settings.HISTORY_DAYS = settings.ADMIN_LOG_DAYS = KEPT_DAYS


@pytest.mark.slow
@pytest.mark.any_database
def test_after_half_a_year_each_table_has_what_its_setting_allows(
    watch: Watch, remote: HostedRepository, alice: Receiver, work: Work, short_memory: None
) -> None:
    operator = User.objects.create(username="operator")
    sizes: list[dict[str, int]] = []
    for week in range(WEEKS):
        # One file changes, one comes, and the one that came last week goes.
        remote.commit({"README.md": f"week {week}\n", f"news/{week}.md": "news\n", f"news/{week - 1}.md": None})
        look.take_snapshot(watch.repository_id, job_id="look")
        work()
        note(operator)
        pass_time(timedelta(days=7))
        age_pins(watch.repository.clone_key)
        tick()
        reconcile.run(job_id="reconcile")
        sizes.append(measured(watch))
    # Between these bounds lies what the last KEPT_WEEKS made, and one more, whose week has begun.
    most = {
        "deliveries": 3 * (KEPT_WEEKS + 1),
        "snapshots": KEPT_WEEKS + 2,
        "versions": 3 + 3 * (KEPT_WEEKS + 2),
        "files": 3 + KEPT_WEEKS + 3,
        "delivered": 4,
        "actions": KEPT_WEEKS + 1,
        "sessions": 3,
        "pins": 2,
        "packs": 2,
    }
    assert {name: max(size[name] for size in sizes) for name in most if max(s[name] for s in sizes) > most[name]} == {}
    assert sizes[-1] == sizes[WEEKS // 2], "it has stopped growing long ago"
    assert sizes[-1]["deliveries"] >= 3 * KEPT_WEEKS - 3, "and what is young enough is still there"
    assert alice.files_of(watch.repository.public_id)["README.md"] == f"week {WEEKS - 1}\n".encode()


def note(operator: User) -> None:
    content_type = ContentType.objects.get_for_model(Watch)
    LogEntry.objects.create(user=operator, content_type=content_type, object_repr="x", action_flag=CHANGE)
    session = SessionStore()
    session["signed in"] = True
    session.set_expiry(timedelta(days=10))
    session.create()


def measured(watch: Watch) -> dict[str, int]:
    key = watch.repository.clone_key
    return {
        "deliveries": Delivery.objects.count(),
        "snapshots": Snapshot.objects.count(),
        "versions": FileVersion.objects.count(),
        "files": File.objects.count(),
        "delivered": Delivered.objects.count(),
        "actions": LogEntry.objects.count(),
        "sessions": Session.objects.count(),
        "pins": len(clones.pins(key)),
        "packs": clones.count_packs(key),
    }


def test_rows_go_in_batches(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 2)
    with CaptureQueriesContext(connection) as queries:
        assert retention.delete(Delivery.objects.order_by("attempted_at")) == 3
    statements = [query["sql"] for query in queries]
    assert len([sql for sql in statements if sql.startswith("DELETE")]) == 2
    assert not Delivery.objects.exists()


def test_old_deliveries_are_found_by_their_index(watch: Watch) -> None:
    plan = retention.old_deliveries()[:500].explain()
    assert "delivery_attempted" in plan or connection.vendor == "postgresql", plan


def test_a_tick_does_not_trim_for_longer_than_its_time(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 1)
    assert retention.delete(Delivery.objects.all(), seconds=0) == 1
    assert Delivery.objects.count() == 2


def test_what_is_current_is_never_trimmed(watch: Watch, short_memory: None) -> None:
    pass_time(timedelta(days=400))
    tick()
    reconcile.run(job_id="reconcile")
    assert manifest.at(watch.repository_id, 1).count() == 3
    assert (Snapshot.objects.count(), Delivered.objects.count(), Delivery.objects.count()) == (1, 3, 0)
    assert timezone.now() - Snapshot.objects.get().taken_at > timedelta(days=399)


def test_every_table_is_in_the_list_of_what_grows() -> None:
    page = (ROOT / "docs" / "running.md").read_text()
    section = page.split("## What grows, and what trims it")[1].split("\n## ")[0]
    ours = {"docora", "repositories", "snapshots"}
    tables = [model.__name__ for model in apps.get_models() if model._meta.app_label in ours and model._meta.managed]
    assert [name for name in (*tables, "LogEntry", "Session") if f"`{name}`" not in section] == []
