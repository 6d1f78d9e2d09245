"""In a repository of 100,000 files, a change of one file costs what one file costs.

What the database reads is counted, statement by statement, on both databases, with and without statistics.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_network

import pytest
from django.core.management import call_command
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import accounts, watches
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots import changes, look
from snapshots.delivery import redelivery, tell
from snapshots.models import Delivered, Delivery, FileVersion, Parked
from tests.conftest import put_fake_redis
from tests.support.database_work import counted
from tests.support.large_repository import grow, set_statistics
from tests.support.worker import run_jobs

# Each test is taken back in the database; what `large` made stays for all of them.
pytestmark = pytest.mark.django_db

FILES = 100_000
# What one statement may cost. A scan of one of the large tables would cost ten times as much.
MOST = 50_000


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
def statistics(large: Large, request: pytest.FixtureRequest) -> None:
    set_statistics(known=request.param == "with")


@contextmanager
def cheap() -> Iterator[None]:
    """No statement of this block reads more than a small part of the repository."""
    with counted() as work:
        yield
    assert work.statements
    assert work.most < (MOST, ""), work.most


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


def test_an_app_that_was_never_in_sync_is_compared_once_file_by_file(large: Large) -> None:
    watch = large.watches[0]
    watch.synced_sequence = 0
    with counted() as work:
        found = list(changes.changes_for(watch, watch.repository.sequence))
    assert found == []
    assert FILES < work.total < 300 * FILES
