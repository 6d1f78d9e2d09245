"""A delivery run: what stops it, what it remembers, what it tells again, and to whom it gives way."""

import ipaddress
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from repositories import accounts, messages, timing, watches
from repositories.base import queue
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.repo_lock import LockLostError, repo_lock
from snapshots import look as snapshots
from snapshots import schedule
from snapshots.delivery import redelivery, tell
from snapshots.delivery import run as runs
from snapshots.delivery.run import FileMessage, Run, Told
from snapshots.delivery.webhooks import WebhookClient
from snapshots.models import Delivered, Delivery, Parked
from tests.support.beside import beside
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def snapshot(repository: Repository, work: Work) -> None:
    watches.request_snapshot(repository)
    work()


@pytest.fixture
def many(git_host: GitHost) -> HostedRepository:
    repository = git_host.create("acme/many")
    repository.commit({f"{number:03}.md": f"number {number}\n" for number in range(60)})
    return repository


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


def test_the_log_has_one_row_for_each_attempt(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    App.objects.update(max_in_flight=1)
    with alice.faults.put(ReceiverFault(path="README.md", status=500, times=1)):
        watches.watch(alice_app, remote.url)
        work()
        work(also_later_ones=True)
    rows = Delivery.objects.order_by("pk")
    assert [(row.path, row.status, row.error_class, row.manual) for row in rows] == [
        ("README.md", 500, "status", False),
        ("README.md", 200, "", False),
        ("docs/start.md", 200, "", False),
        ("logo.png", 200, "", False),
    ]
    assert rows[0].message_id == rows[1].message_id
    assert {row.message_id for row in rows} == {request.headers["webhook-id"] for request in alice.requests}


def test_creates_begin_when_every_delete_is_answered(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """A file may take the place of a deleted folder."""
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"docs/start.md": None, "logo.png": None, "docs": "a file"})
    unanswered: list[str] = []

    def look_for_deletes(request: ReceivedRequest) -> None:
        if request.event == "create":
            unanswered.extend(other.path for other in alice.requests if other.status is None)

    alice.on_request = look_for_deletes
    with alice.faults.put(ReceiverFault(events=("delete",), delay=0.3)):
        snapshot(watch.repository, work)
    assert [request.event for request in alice.requests[-3:]] == ["delete", "delete", "create"]
    assert unanswered == []
    assert alice.problems == []


def test_a_killed_worker_repeats_no_more_than_what_was_under_way(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was sent and is not written down yet: the answers of one commit, and the requests that may be open."""
    App.objects.update(max_in_flight=2)
    monkeypatch.setattr(runs, "_PULSE", 60.0)
    monkeypatch.setattr(runs, "_ANSWERS_IN_A_COMMIT", 8)
    under_way: list[int] = []

    def count(_: ReceivedRequest) -> None:
        beside(lambda: under_way.append(len(alice.requests) - Delivery.objects.count()))

    alice.on_request = count
    watches.watch(alice_app, many.url)
    work()
    assert max(under_way) <= 10


@pytest.mark.parametrize("again", ["a retry", "a redelivery"])
def test_the_delete_of_a_file_has_one_id_although_commits_follow(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, again: str
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"README.md": None})
    with alice.faults.put(ReceiverFault(status=500 if again == "a retry" else 200)):
        snapshot(watch.repository, work)
    remote.commit({"more.md": "more"})
    Watch.objects.update(retry_at=None)
    snapshot(watch.repository, work)
    if again == "a redelivery":
        alice.mirror.repeats_are_allowed = True
        redelivery.redeliver(Delivery.objects.get(event="delete"))
        work()
    deletes = [request for request in alice.requests if request.event == "delete"]
    assert [request.status for request in deletes][-1] == 200
    assert len(deletes) == 2
    assert len({request.headers["webhook-id"] for request in deletes}) == 1


def test_an_update_that_somebody_asks_for_has_another_id_than_the_create(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """A receiver that remembers the id of the create would ignore it."""
    alice.mirror.repeats_are_allowed = True
    watch = watches.watch(alice_app, remote.url)
    work()
    file_id = Delivered.objects.get(file__path="README.md").file_id
    redelivery.send_again(watch, creates=(), updates=[file_id], deletes={})
    work()
    told = [request for request in alice.requests if request.path == "README.md"]
    assert [request.event for request in told] == ["create", "update"]
    assert len({request.headers["webhook-id"] for request in told}) == 2


def test_messages_of_one_path_have_ids_of_their_own(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    for content in ("two", None, "three"):
        remote.commit({"README.md": content})
        snapshot(watch.repository, work)
    requests = [request for request in alice.requests if request.path == "README.md"]
    assert [request.event for request in requests] == ["create", "update", "delete", "create"]
    assert len({request.headers["webhook-id"] for request in requests}) == 4


def test_a_second_run_leaves_and_the_first_looks_again(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watches.watch(alice_app, remote.url)
    key = f"delivery:{watch.app_id}:{watch.repository_id}"
    with repo_lock(key, job_id="the-first", wait=0):
        work()
        assert "Left acme/handbook to the run" in caplog.text
        assert alice.requests == []
    tell._rerun_after_current(watch)
    work()
    assert alice.files[watch.repository.public_id] == remote.files()


@pytest.mark.parametrize("renewed", [False, True], ids=["the same watch", "a renewed watch"])
def test_what_a_second_run_has_left_is_told_when_the_first_has_ended(
    alice_app: App,
    alice: Receiver,
    remote: HostedRepository,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    renewed: bool,
) -> None:
    """The second run finds the lock busy and gives up; nothing but the end of the first asks for it again."""
    monkeypatch.setattr(runs, "_PULSE", 60.0)  # the first run notices nothing before its answer has come
    alice.mirror.repeats_are_allowed = True
    first = watches.watch(alice_app, remote.url)
    queue.drop(messages.snapshot_job(first.repository_id))
    snapshots.take_snapshot(first.repository_id, job_id="look")
    queue.drop(messages.delivery_job(first.pk))

    def come_second() -> None:
        watch = watches.watch(alice_app, remote.url) if renewed else first
        remote.commit({"README.md": "second"})
        with monkeypatch.context() as patched:
            patched.setattr(snapshots, "request_deliveries", lambda *_, **__: None)
            snapshots.take_snapshot(first.repository_id, job_id="beside")
        assert tell.deliver(watch.pk, job_id="second") is None

    def once(_: ReceivedRequest) -> None:
        alice.on_request = lambda _: None
        beside(come_second)

    alice.on_request = once
    with monkeypatch.context() as patched:
        patched.setattr(messages, "take_snapshot", lambda *_, **__: None)
        tell.deliver(first.pk, job_id="first")
    assert [name for name in queue.ALL if queue.length(name)] == [queue.DELIVERIES]
    work()
    assert alice.files[first.repository.public_id] == remote.files()
    assert Watch.objects.get().synced_commit == remote.tip()


def test_what_is_committed_during_a_run_follows_in_the_same_job(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"README.md": "second"})

    def commit_once_more(request: ReceivedRequest) -> None:
        alice.on_request = lambda request: None
        remote.commit({"README.md": "third"})
        beside(lambda: snapshots.take_snapshot(watch.repository_id, job_id="beside"))

    alice.on_request = commit_once_more
    snapshot(watch.repository, work)
    watch.refresh_from_db()
    assert watch.synced_commit == remote.tip()
    assert alice.files[watch.repository.public_id]["README.md"] == b"third"
    assert alice.problems == []


def test_unwatching_in_the_middle_stops_at_once_and_leaves_no_rows(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work
) -> None:
    App.objects.update(max_in_flight=1)
    watch = watches.watch(alice_app, many.url)
    alice.on_request = lambda request: _after(alice, 10, lambda: watches.unwatch(alice_app, watch.repository.public_id))
    work()
    assert len(alice.requests) <= 12
    for model in (Watch, Delivered, Delivery, Parked):
        assert not model._default_manager.exists()


def test_disabling_an_app_in_the_middle_stops_at_once(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work
) -> None:
    App.objects.update(max_in_flight=1)
    watches.watch(alice_app, many.url)
    alice.on_request = lambda request: _after(alice, 10, lambda: accounts.disable_app(alice_app, "for a test"))
    work()
    assert len(alice.requests) <= 12


def test_other_options_take_back_what_is_not_sent_yet(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work
) -> None:
    """Ten messages are ready, of which two are under way: the others are not sent any more."""
    App.objects.update(max_in_flight=2)
    watch = watches.watch(alice_app, many.url)
    exclude = {"exclude": ("*.md",)}
    alice.on_request = lambda request: _after(
        alice, 2, lambda: watches.change_options(alice_app, watch.repository.public_id, **exclude)
    )
    with alice.faults.put(ReceiverFault(events=("create",), delay=0.5)):
        work()
    assert len([request for request in alice.requests if request.event == "create"]) < 10
    assert alice.files_of(watch.repository.public_id) == {}
    assert alice.problems == []


def test_a_watch_that_is_renewed_in_the_middle_delivers_everything(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work
) -> None:
    App.objects.update(max_in_flight=1)
    watch = watches.watch(alice_app, many.url)
    alice.mirror.repeats_are_allowed = True
    alice.on_request = lambda request: _after(alice, 10, lambda: watches.watch(alice_app, many.url))
    work()
    renewed = Watch.objects.get()
    assert renewed.pk != watch.pk
    assert renewed.status == WatchStatus.SYNCED
    assert alice.files[watch.repository.public_id] == many.files()
    ids = [request.headers["webhook-id"] for request in alice.requests]
    assert len(set(ids)) == len(ids) >= 70


def _after(receiver: Receiver, number: int, act: Callable[[], object]) -> None:
    """Act from another thread and connection while the run waits for the answer to its nth request."""
    if len(receiver.requests) == number:
        beside(act)


def test_a_long_run_gives_way_and_goes_on_at_the_back_of_its_queue(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    App.objects.update(max_in_flight=2)
    monkeypatch.setattr(tell, "_BUDGET", 0.05)
    with alice.faults.put(ReceiverFault(delay=0.01)):
        watch = watches.watch(alice_app, many.url)
        work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert alice.files[watch.repository.public_id] == many.files()
    assert alice.problems == []
    assert len(alice.requests) == 60


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


def test_a_missing_blob_has_the_clone_made_anew(
    alice_app: App, bob_app: App, bob: Receiver, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    for pack in clones.path_of(watch.repository.clone_key).glob("objects/pack/*"):
        pack.unlink()
    for loose in clones.path_of(watch.repository.clone_key).glob("objects/??/*"):
        loose.unlink()
    watches.watch(bob_app, remote.url)
    work()
    assert bob.files[watch.repository.public_id] == remote.files()
    assert Repository.objects.get().needs_repair is False


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


@pytest.mark.parametrize("what", ["a resync", "other options"])
def test_what_is_asked_for_at_the_very_end_of_a_run_is_not_taken_for_told(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    alice.mirror.repeats_are_allowed = True
    watch = watches.watch(alice_app, remote.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    tell_all = Run.tell_all

    def tell_all_and_ask(run: Run) -> Told:
        monkeypatch.setattr(Run, "tell_all", tell_all)
        told = tell_all(run)
        if what == "a resync":
            redelivery.resync(watch)
        else:
            watches.change_options(alice_app, watch.repository.public_id, exclude=("*.png",))
        return told

    monkeypatch.setattr(Run, "tell_all", tell_all_and_ask)
    tell.deliver(watch.pk, job_id="test")
    watch.refresh_from_db()
    assert (watch.status, watch.synced_sequence) == (WatchStatus.PENDING, 0)
    work()
    if what == "a resync":
        assert len(alice.requests) == 2 * len(remote.files())
    else:
        assert (alice.requests[-1].event, alice.requests[-1].path) == ("delete", "logo.png")


def test_an_app_that_is_disabled_while_its_run_waits_to_begin_is_told_nothing(
    alice_app: App, alice: Receiver, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watches.watch(alice_app, remote.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")

    def disable_and_lock(*args: Any, **options: Any) -> Any:
        accounts.disable_app(alice_app, "for a test")
        return repo_lock(*args, **options)

    monkeypatch.setattr(tell, "repo_lock", disable_and_lock)
    assert tell.deliver(watch.pk, job_id="test") is None
    assert alice.requests == []


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


def test_a_run_that_has_lost_its_lock_writes_nothing_down(
    alice_app: App, alice: Receiver, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watches.watch(alice_app, remote.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    record = Run._record

    def lose_and_record(run: Run, **options: bool) -> None:
        run._held.lease.lose()
        record(run, **options)

    monkeypatch.setattr(Run, "_record", lose_and_record)
    with pytest.raises(LockLostError):
        tell.deliver(watch.pk, job_id="test")
    assert alice.requests
    assert Delivered.objects.count() == Delivery.objects.count() == 0


def test_a_run_that_has_lost_its_lock_waits_for_no_answer(
    alice_app: App, alice: Receiver, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other options were chosen, so it only waits for the answers to what it has sent."""
    watch = watches.watch(alice_app, remote.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    wait_for_answers = Run._await_what_was_sent

    def lose_and_wait(run: Run) -> None:
        run._held.lease.lose()
        monkeypatch.setattr(run._client, "answers", lambda **_: pytest.fail("it waited"))
        wait_for_answers(run)

    def choose(_: ReceivedRequest) -> None:
        alice.on_request = lambda _: None
        beside(lambda: watches.change_options(alice_app, watch.repository.public_id, exclude=("*.png",)))

    monkeypatch.setattr(Run, "_await_what_was_sent", lose_and_wait)
    alice.on_request = choose
    with alice.faults.put(ReceiverFault(path="logo.png", hang=True)), pytest.raises(LockLostError):
        tell.deliver(watch.pk, job_id="test")
    assert Delivery.objects.filter(path="logo.png").count() == 0


def test_few_large_messages_are_under_way_at_once(
    alice_app: App, alice: Receiver, git_host: GitHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = git_host.create("acme/large")
    large.commit({f"{number}.txt": "x" * 10_000 for number in range(30)})
    watch = watches.watch(alice_app, large.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    monkeypatch.setattr(runs, "_BYTES_UNDER_WAY", 30_000)
    submit, under_way = WebhookClient.submit, []

    def submit_and_look(client: WebhookClient[FileMessage], message: FileMessage) -> None:
        submit(client, message)
        under_way.append(client.unanswered_bytes)

    monkeypatch.setattr(WebhookClient, "submit", submit_and_look)
    tell.deliver(watch.pk, job_id="test")
    assert alice.files[watch.repository.public_id] == large.files()
    assert 30_000 < max(under_way) < 45_000
