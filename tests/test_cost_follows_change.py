"""In a repository of 100,000 files, a change of one file costs what one file costs, and a page what it shows.

What the database reads is counted, statement by statement, on both databases, with and without statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from operator import itemgetter
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from docora.console import deliveries
from docora.console.base import BoundedPaginator
from docora.console.deliveries import WhenFilter
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import accounts, watches
from repositories.base import queue
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots import changes, feed, look, schedule
from snapshots.delivery import redelivery, tell
from snapshots.models import Delivered, Delivery, FileVersion, Parked
from tests.conftest import put_fake_redis
from tests.support.api import Api
from tests.support.database_work import counted
from tests.support.large_repository import grow, set_statistics
from tests.support.worker import run_jobs

# Each test is taken back in the database; what `large` made stays for all of them.
pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("large_repository")]

FILES = 100_000
# What one statement may cost. A scan of one of the large tables would cost ten times as much.
MOST = 50_000
# What all statements of a change may cost together: no more than a step for each file, however many they are.
MOST_IN_ALL = 100_000
# Of the attempts that a list of the console counts or searches; in earnest, some ten thousands.
SHOWN = 500


@dataclass
class Large:
    remote: HostedRepository
    receivers: list[Receiver]
    bearer_tokens: list[str]

    @property
    def watches(self) -> list[Watch]:
        return list(Watch.objects.select_related("app", "repository").order_by("pk"))

    def look(self) -> None:
        look.take_snapshot(Repository.objects.get().pk, job_id="look")

    def deliver(self) -> None:
        for receiver in self.receivers:
            receiver.requests.clear()
        for watch in self.watches:
            tell.deliver(watch.pk, job_id="tell")

    def told(self) -> list[list[tuple[str, str]]]:
        return [[(request.event, request.path) for request in receiver.requests] for receiver in self.receivers]


@pytest.fixture(scope="module")
def large(
    tmp_path_factory: pytest.TempPathFactory, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[Large]:
    """A repository that two apps have all of."""
    folder = tmp_path_factory.mktemp("large")
    with (
        django_db_blocker.unblock(),
        GitHost(folder / "host") as host,
        Receiver(webhook_key="the key of the first app") as first,
        Receiver(webhook_key="the key of the second app") as second,
        override_settings(
            GIT_HOSTS=(host.address,),
            TRUSTED_NETWORKS=(ip_network("127.0.0.0/8"),),
            REPOS_BASE_PATH=folder / "repos",
        ),
        pytest.MonkeyPatch.context() as patch,
    ):
        put_fake_redis(patch)
        remote = host.create("acme/large")
        remote.commit({"README.md": "one", "docs/start.md": "one"})
        made = [accounts.onboard("app", each.url, webhook_key=each.webhook_keys[0]) for each in (first, second)]
        for credentials in made:
            watches.watch(App.objects.get(public_id=credentials.app_id), remote.url)
        run_jobs()
        cast = Large(remote, [first, second], [credentials.bearer_token for credentials in made])
        grow(cast.watches, files=FILES)
        yield cast
        call_command("flush", interactive=False)


@pytest.fixture(scope="module", params=["with", "without"], autouse=True)
def statistics(large: Large, request: pytest.FixtureRequest) -> bool:
    set_statistics(known=request.param == "with")
    return bool(request.param == "with")


@contextmanager
def cheap() -> Iterator[None]:
    """Neither one statement of this block nor all of them read more than a small part of the repository."""
    with counted() as work:
        yield
    assert work.statements
    assert work.most < (MOST, ""), work.most
    assert work.total < MOST_IN_ALL, sorted(work.statements, key=itemgetter(1))[-10:]


def test_one_changed_file_is_found_and_told(large: Large) -> None:
    large.remote.commit({"README.md": "two"})
    with cheap():
        large.look()
        large.deliver()
    assert large.told() == [[("update", "README.md")]] * 2
    assert {watch.status for watch in large.watches} == {WatchStatus.SYNCED}


def test_one_file_is_redelivered_by_hand(large: Large) -> None:
    delivery = Delivery.objects.filter(watch=large.watches[0], path="README.md").get()
    with cheap():
        redelivery.redeliver(delivery)
        large.deliver()
    assert large.told() == [[("create", "README.md")], []]
    assert large.receivers[0].requests[0].headers["webhook-id"] == delivery.message_id


def test_a_parked_file_is_tried_again(large: Large) -> None:
    watch, version = large.watches[0], FileVersion.objects.get(file__path="README.md")
    Delivered.objects.filter(watch=watch, file=version.file).delete()
    Parked.objects.create(watch=watch, file=version.file, sha256=version.sha256, reason="413")
    with cheap():
        redelivery.retry_parked(watch)
        large.deliver()
    assert large.told() == [[("create", "README.md")], []]


def test_what_an_app_may_have_of_a_run_that_was_cut_off_is_found_among_what_changed(large: Large) -> None:
    Watch.objects.update(begun_sequence=Repository.objects.get().sequence)
    large.remote.commit({"README.md": "two"})
    with cheap():
        large.look()
        large.deliver()
    assert large.told() == [[("update", "README.md")]] * 2


def test_an_app_is_told_that_it_has_all_of_a_commit(large: Large) -> None:
    App.objects.update(events=["sync_complete"])
    large.remote.commit({"README.md": "two"})
    with cheap():
        large.look()
        large.deliver()
    assert [[event for event, _ in told] for told in large.told()] == [["update", "sync_complete"]] * 2


def test_an_unchanged_look_and_the_tick_around_it(large: Large) -> None:
    large.look()
    large.deliver()
    Repository.objects.update(next_check_at=timezone.now())
    queue.connection().set("docora:last-reconciled", "now")
    with cheap():
        assert schedule.tick() == 0
    assert Repository.objects.get().last_checked_at


@pytest.mark.parametrize("has", ["all of it", "another file"])
def test_an_app_verifies_by_the_digest_or_a_few_of_its_files(large: Large, has: str) -> None:
    api, watch = Api(large.bearer_tokens[0]), large.watches[0]
    claim: dict[str, Any] = {"digest": watch.digest}
    if has == "another file":
        claim = {"files": [{"path": "README.md", "sha": "0" * 64}], "partial": True}
    with cheap():
        answer = api.call("POST", f"/api/repositories/{watch.repository.public_id}/verify", claim)
    assert answer.json()["equal"] == (has == "all of it")


def test_an_app_that_was_never_in_sync_is_compared_once_file_by_file(large: Large) -> None:
    watch = large.watches[0]
    watch.synced_sequence = 0
    with counted() as work:
        found = list(changes.changes_for(watch, watch.repository.sequence))
    assert found == []
    assert FILES < work.total < 300 * FILES


@dataclass
class Pages:
    """Pages that were read, and the ones among them that read too much."""

    read: int = 0
    dear: list[tuple[str, tuple[int, str]]] = field(default_factory=list)

    @contextmanager
    def page(self, url: str) -> Iterator[None]:
        with counted() as work:
            yield
        self.read += 1
        if work.most >= (MOST, ""):
            self.dear.append((url, work.most))


def test_every_page_of_the_api_costs_what_it_shows(large: Large) -> None:
    api, watch, pages = Api(large.bearer_tokens[0]), large.watches[0], Pages()
    this = f"/api/repositories/{watch.repository.public_id}"
    inside_of_the_first_snapshot = feed.Place(1, 2, watch.repository.files.order_by("pk")[FILES // 2].pk)
    paths = [
        "/api/app",
        "/api/repositories",
        "/api/repositories?status=synced",
        this,
        f"{this}/files",
        f"{this}/files/README.md",
        f"{this}/changes",
        f"{this}/changes?since={feed.cursor_for(watch, inside_of_the_first_snapshot)}",
        f"{this}/deliveries",
        f"{this}/deliveries?failed=true",
        f"{this}/hook",
    ]
    documented = api.get("/api/openapi.json").json()["paths"]
    readable = {path for path, methods in documented.items() if "get" in methods}
    assert {path.partition("?")[0].replace("README.md", "{path}") for path in paths} == {
        path.replace("{repository_id}", watch.repository.public_id) for path in readable
    }
    for path in paths:
        _read_two_pages(api, path, pages)
    Watch.objects.filter(pk=watch.pk).update(status=WatchStatus.FAILED)
    for path in ("/api/repositories", this):
        _read_two_pages(api, path, pages)
    assert not pages.dear, "\n".join(map(str, pages.dear))


def _read_two_pages(api: Api, path: str, pages: Pages) -> None:
    with pages.page(path):
        answer = api.get(path)
    assert answer.status_code == (404 if path.endswith("/hook") else 200), path  # nobody asked for a hook
    page = {} if answer.streaming else answer.json()
    if cursor := page.get("next_cursor") or page.get("cursor"):
        following = f"{path.partition('?')[0]}?{'since' if '/changes' in path else 'cursor'}={cursor}"
        with pages.page(following):
            assert api.get(following).status_code == 200


def test_every_page_of_the_console_costs_what_it_shows(
    large: Large, statistics: bool, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "NEWEST", SHOWN)
    monkeypatch.setattr(BoundedPaginator, "MOST", SHOWN)
    client.force_login(User.objects.create_superuser("admin"))
    version = FileVersion.objects.get(file__path="README.md")
    Parked.objects.create(watch=large.watches[0], file=version.file, sha256=version.sha256, reason="413")
    Watch.objects.filter(pk=large.watches[0].pk).update(status=WatchStatus.FAILED)
    client.get(reverse("admin:index"))  # the hours that are over are counted once
    pages = Pages()
    for url in _pages_of_the_console():
        with pages.page(url):
            answer = client.get(url)
        assert answer.status_code == 200, url
    assert pages.read > 50
    if connection.vendor == "postgresql" and not statistics:
        # It takes a watch to have a two-hundredth of all attempts, and may collect all of them before it counts 500.
        pages.dear = [(url, most) for url, most in pages.dear if not _counts_attempts_of_a_watch(url, most[1])]
    assert not pages.dear, "\n".join(map(str, pages.dear))


def _counts_attempts_of_a_watch(url: str, statement: str) -> bool:
    return "/delivery/?" in url and "watch__id__exact=" in url and statement.startswith("SELECT COUNT(*) FROM (SELECT")


def _pages_of_the_console() -> Iterator[str]:
    yield reverse("admin:index")
    for model, console in admin.site._registry.items():
        if not model._meta.managed:  # the pages of the queue, which reads no rows
            continue
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        for question in _questions(console):
            yield f"{reverse(f'{name}_changelist')}?{question}"
        if row := model._default_manager.order_by("pk").first():
            yield reverse(f"{name}_change", args=[row.pk])


def _questions(console: Any) -> Iterator[str]:
    """A search, each order, each filter, and each link from another page; of deliveries, those together."""
    sortable = console.list_display if console.sortable_by is None else console.sortable_by
    filters = [f"{each.parameter_name}={value}" for each in _own_filters(console) for value in _values(each)]
    links = [f"{link}=1" for link in getattr(console, "linked_by", ())]
    yield from ("", "p=2", "q=made", "q=nowhere")
    yield from (f"o=-{console.list_display.index(column) + 1}" for column in sortable)
    yield from filters + links
    if WhenFilter in console.list_filter:
        yield from (f"when=all&{other}" for other in (*filters, "q=nowhere"))
        yield from (f"when=all&{link}&{other}" for link in links for other in ("", *filters, "q=nowhere"))


def _own_filters(console: Any) -> list[Any]:
    return [each for each in console.list_filter if hasattr(each, "parameter_name") and each is not WhenFilter]


def _values(each: Any) -> list[str]:
    """Some: the others of a filter ask the same of the database."""
    return [name for name, _ in each.lookups(each, None, None)][:4]
