"""The list of deliveries: how far back it reads, and which attempts belong together."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db.models import Q
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from docora.console import deliveries
from repositories.models import App, Repository, Watch
from snapshots.models import REFUSED, Delivery

pytestmark = pytest.mark.django_db


@pytest.fixture
def log(alice_app: App, bob_app: App, monkeypatch: pytest.MonkeyPatch) -> list[Watch]:
    """Two watches of Alice's and one of Bob's; the first is the busiest one."""
    monkeypatch.setattr(deliveries, "NEWEST", 200)
    repositories = [Repository.objects.create(url=f"https://h/a/{name}", name=name, clone_key=name) for name in "xy"]
    pairs = [(alice_app, repositories[0]), (alice_app, repositories[1]), (bob_app, repositories[0])]
    watches = [Watch.objects.create(app=app, repository=repository) for app, repository in pairs]
    now = timezone.now()
    Delivery.objects.bulk_create(
        attempt
        for watch, count, seconds in zip(watches, (400, 60, 300), (1, 3, 2), strict=True)
        for attempt in _attempts(watch, count, now, seconds)
    )
    return watches


def _attempts(watch: Watch, count: int, now: datetime, seconds: int) -> Iterator[Delivery]:
    for number in range(count):
        moment = now - timedelta(seconds=seconds * number)
        message = f"msg_{watch.pk}_{number}"
        yield Delivery(watch=watch, message_id=message, event="create", status=200, milliseconds=1, attempted_at=moment)


def shown(question: str, among: Q | None = None) -> list[int]:
    """What a list with this question may show, newest first."""
    request = RequestFactory().get(f"/?{question}")
    found = deliveries._newest(Delivery.objects.filter(among or Q()), request)
    return list(found.order_by("-attempted_at", "-pk").values_list("pk", flat=True))


def newest(condition: Q, count: int) -> list[int]:
    rows = Delivery.objects.filter(condition).order_by("-attempted_at", "-pk")
    return list(rows.values_list("pk", flat=True)[:count])


def test_the_newest_attempts_are_listed_without_a_gap(log: list[Watch]) -> None:
    busy, _, bobs = log
    for question, condition, least in (
        ("event=create", Q(), 200),
        (f"watch__id__exact={bobs.pk}", Q(watch=bobs), 200),
        (f"watch__app__id__exact={busy.app_id}", Q(watch__app=busy.app_id), 100),
        (f"watch__repository__id__exact={busy.repository_id}", Q(watch__repository=busy.repository_id), 100),
    ):
        found = shown(question)
        assert least <= len(found) <= 210, question
        assert found == newest(condition, len(found)), question


def test_what_failed_is_found_however_long_ago(log: list[Watch]) -> None:
    old = Delivery.objects.filter(watch=log[0]).order_by("attempted_at").first()
    assert old is not None
    assert old.pk not in shown(f"watch__app__id__exact={log[0].app_id}")
    Delivery.objects.filter(pk=old.pk).update(status=503)
    for question in ("outcome=refused", f"outcome=refused&watch__app__id__exact={log[0].app_id}"):
        assert shown(question, REFUSED) == [old.pk]


def test_a_page_shows_the_other_attempts_at_its_message(log: list[Watch], client: Client) -> None:
    first, second, *_, other = Delivery.objects.filter(watch=log[0]).order_by("-attempted_at")
    Delivery.objects.filter(pk__in=[first.pk, second.pk]).update(message_id="msg_same")
    client.force_login(User.objects.create_superuser("admin"))
    for row, expected in ((first, [second.pk]), (second, [first.pk]), (other, [])):
        answer = client.get(reverse("admin:snapshots_delivery_change", args=[row.pk]))
        assert [attempt.pk for attempt in answer.context["attempts"]] == expected
