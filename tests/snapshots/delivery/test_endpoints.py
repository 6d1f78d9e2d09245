"""Endpoints that fail, are slow, ask for a pause or are gone: when they are told again, and what ends it."""

import ipaddress
from datetime import timedelta

import pytest
from django.core import mail
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts, messages, timing, watches
from repositories.base import queue
from repositories.models import App, Watch, WatchStatus
from snapshots import look as snapshots
from snapshots import schedule
from snapshots.delivery import tell
from snapshots.models import Delivery, Parked
from tests.support.worker import Work, snapshot

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_endpoints_pause_grows_and_is_spread(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    settings.RETRY_BASE_DELAY = 10
    with alice.faults.put(ReceiverFault(status=500)):
        watch = watches.watch(alice_app, remote.url)
        work()
        for attempt in range(1, 4):
            watch.refresh_from_db()
            assert watch.retry_at is not None
            pause = (watch.retry_at - timezone.now()).total_seconds()
            assert 0.7 * 10 * 2 ** (attempt - 1) < pause <= 1.25 * 10 * 2 ** (attempt - 1)
            Watch.objects.update(retry_at=None)
            work(also_later_ones=True)


@pytest.mark.parametrize("answer", ["90", "in a moment"])
def test_retry_after_is_honoured(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, answer: str
) -> None:
    with alice.faults.put(ReceiverFault(status=429, headers={"Retry-After": answer})):
        watch = watches.watch(alice_app, remote.url)
        work()
    watch.refresh_from_db()
    assert watch.retry_at is not None
    assert (watch.retry_at > timezone.now() + timedelta(seconds=80)) == (answer == "90")


@pytest.mark.parametrize(
    "fault", [ReceiverFault(hang=True), ReceiverFault(status=500, delay=0.1)], ids=["hangs", "500"]
)
def test_an_endpoint_that_fails_is_asked_no_more_than_what_is_in_flight(
    alice_app: App, alice: Receiver, many: HostedRepository, settings: Settings, fault: ReceiverFault
) -> None:
    settings.SLOW_AFTER = 0.5
    watch = watches.watch(alice_app, many.url)
    snapshots.take_snapshot(watch.repository_id, job_id="test")
    with alice.faults.put(fault):
        tell.deliver(watch.pk, job_id="test", lane=queue.DELIVERIES)
    assert len(alice.requests) == alice_app.max_in_flight


def test_who_asks_for_a_pause_is_told_nothing_by_its_other_watches_either(
    alice_app: App,
    alice: Receiver,
    bob_app: App,
    bob: Receiver,
    git_host: GitHost,
    remote: HostedRepository,
    work: Work,
) -> None:
    other = git_host.create("acme/other")
    other.commit({"other.md": "one"})
    made = [watches.watch(app, url) for app in (alice_app, bob_app) for url in (remote.url, other.url)]
    work()
    with alice.faults.put(ReceiverFault(status=429, headers={"Retry-After": "90"})):
        remote.commit({"README.md": "changed"})
        watches.request_snapshot(made[0].repository)
        work()
    told = len(alice.requests)
    other.commit({"other.md": "two"})
    watches.request_snapshot(made[1].repository)
    work()
    renewed = watches.watch(alice_app, other.url)
    work()
    assert len(alice.requests) == told
    assert not Watch.objects.filter(status=WatchStatus.SCANNING).exists(), "they wait, and nobody works on them"
    assert renewed.retry_at is None
    assert bob.files[made[1].repository.public_id] == other.files()
    Watch.objects.update(retry_at=None)
    App.objects.update(resting_until=timezone.now())
    schedule.tick()
    work()
    assert alice.files == bob.files


def test_a_shorter_rest_does_not_end_a_longer_one(alice_app: App) -> None:
    timing.rest_app(alice_app, 1000)
    timing.rest_app(alice_app, 10)
    alice_app.refresh_from_db()
    assert timing.seconds_of_rest(alice_app) > 900


@pytest.mark.parametrize("pause", ["of the watch", "of its app"])
def test_no_delivery_is_requested_during_a_pause(
    alice_app: App, alice: Receiver, remote: HostedRepository, pause: str
) -> None:
    watch = watches.watch(alice_app, remote.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    queue.drop(messages.delivery_job(watch.pk))
    later = timezone.now() + timedelta(hours=1)
    if pause == "of the watch":
        Watch.objects.update(retry_at=later)
    else:
        App.objects.update(resting_until=later)
    schedule.tick()
    assert not queue.is_alive(messages.delivery_job(watch.pk))
    timing.clear_pauses(watch)
    schedule.tick()
    assert queue.is_alive(messages.delivery_job(watch.pk))


def test_an_endpoint_that_is_gone_is_disabled_with_notice(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    App.objects.update(email="alice@example.com")
    with alice.faults.put(ReceiverFault(status=410)):
        watch = watches.watch(alice_app, remote.url)
        work()
    alice_app.refresh_from_db()
    watch.refresh_from_db()
    assert alice_app.disabled_at
    assert "410" in alice_app.disabled_reason
    assert (watch.status, watch.last_error_code) == (WatchStatus.FAILED, "endpoint-disabled")
    assert [(message.to, "switched off" in message.subject) for message in mail.outbox] == [
        (["alice@example.com"], True)
    ]
    alice.requests.clear()
    snapshot(watch.repository, work)
    assert alice.requests == []


def test_an_enabled_endpoint_gets_what_it_has_missed(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    accounts.disable_app(alice_app, "for a test")
    remote.commit({"README.md": None, "new.md": "new"})
    snapshot(watch.repository, work)
    assert "new.md" not in alice.files[watch.repository.public_id]
    accounts.enable_app(alice_app)
    work()
    assert alice.files[watch.repository.public_id] == remote.files()
    assert alice.problems == []


def test_a_repository_that_cannot_be_read_takes_no_reason_from_a_disabled_endpoint(
    alice_app: App, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    accounts.disable_app(alice_app, "for a test")
    with git_host.faults.put(GitFault(status=503)):
        snapshot(watch.repository, work)
    watch.refresh_from_db()
    assert (watch.status, watch.last_error_code) == (WatchStatus.FAILED, "endpoint-disabled")


def test_days_of_failure_disable_the_endpoint(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    with alice.faults.put(ReceiverFault(status=503)):
        watches.watch(alice_app, remote.url)
        work()
        alice_app.refresh_from_db()
        assert alice_app.failing_since
        assert not alice_app.disabled_at
        App.objects.update(failing_since=timezone.now() - timedelta(days=settings.ENDPOINT_PATIENCE_DAYS, seconds=1))
        work(also_later_ones=True)
    alice_app.refresh_from_db()
    assert "503" in alice_app.disabled_reason


def test_an_acceptance_ends_the_days_of_failure(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    App.objects.update(failing_since=timezone.now() - timedelta(days=30))
    watches.watch(alice_app, remote.url)
    work()
    alice_app.refresh_from_db()
    assert alice_app.failing_since is None


def test_an_endpoint_that_refuses_everything_is_not_taken_for_many_bad_files(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(status=400)):
        watch = watches.watch(alice_app, many.url)
        work()
    watch.refresh_from_db()
    assert (watch.status, watch.retry_count) == (WatchStatus.PENDING, 1)
    assert not Parked.objects.exists()
    work(also_later_ones=True)
    assert alice.files[watch.repository.public_id] == many.files()


def test_a_slow_endpoint_moves_to_the_slow_lane_and_back(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    settings.SLOW_AFTER = 0.3
    alice.mirror.repeats_are_allowed = True
    with alice.faults.put(ReceiverFault(delay=0.6)):
        watch = watches.watch(alice_app, remote.url)
        work()
        alice_app.refresh_from_db()
        watch.refresh_from_db()
        assert alice_app.slow_since
        assert (watch.status, watch.retry_count) == (WatchStatus.SYNCED, 0)
    assert alice.files[watch.repository.public_id] == remote.files()
    settings.SLOW_AFTER = 60  # however busy this machine is, the answer comes in time
    remote.commit({"README.md": "again"})
    snapshot(watch.repository, work)
    alice_app.refresh_from_db()
    assert alice_app.slow_since is None


def test_the_jobs_of_a_slow_app_wait_in_a_queue_of_their_own(
    alice_app: App, bob_app: App, remote: HostedRepository, work: Work
) -> None:
    App.objects.filter(pk=alice_app.pk).update(slow_since=timezone.now())
    for app in (alice_app, bob_app):
        watches.watch(app, remote.url)
    alice_app.refresh_from_db()
    for watch in Watch.objects.select_related("app"):
        tell.request_delivery(watch)
    waiting = {name: queue.connection().llen(f"rq:queue:{name}") for name in queue.ALL}
    assert waiting == {"urgent": 0, "snapshots": 1, "deliveries": 1, "deliveries-slow": 1}


def test_plain_http_outside_of_trusted_networks_is_refused_with_the_settings_name(
    alice_app: App, remote: HostedRepository, work: Work, settings: Settings, alice: Receiver
) -> None:
    watch = watches.watch(alice_app, remote.url)
    delivery_only = (ipaddress.ip_network("127.0.0.0/8"),)
    App.objects.update(base_url="http://192.0.2.1:9")
    settings.TRUSTED_NETWORKS = delivery_only
    work()
    watch.refresh_from_db()
    assert "DOCORA_TRUSTED_NETWORKS" in watch.last_error
    assert Delivery.objects.first().error_class == "forbidden-address"  # type: ignore[union-attr]


def test_retry_of_a_delivery_neither_fetches_nor_asks(
    alice_app: App, alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(status=500, times=3)):
        watches.watch(alice_app, remote.url)
        work()
        asked = (git_host.count(remote, "fetch"), git_host.count(remote, "ls-refs"))
        for _ in range(4):
            Watch.objects.update(retry_at=None)
            work(also_later_ones=True)
    assert Watch.objects.get().status == WatchStatus.SYNCED
    assert (git_host.count(remote, "fetch"), git_host.count(remote, "ls-refs")) == asked
