"""What happens while a delivery run is under way: second runs, commits, unwatching, other options, a lost lock."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from repositories import accounts, messages, watch_state, watches
from repositories.base import queue
from repositories.errors import AccessDenied
from repositories.models import App, Watch, WatchStatus
from repositories.repo_lock import LockLostError, repo_lock
from snapshots import look as snapshots
from snapshots.delivery import redelivery, tell
from snapshots.delivery import run as runs
from snapshots.delivery.run import Run, Told
from snapshots.delivery.webhooks import WebhookClient
from snapshots.models import Delivered, Delivery, Parked
from tests.support.beside import beside
from tests.support.worker import Work, snapshot

pytestmark = pytest.mark.django_db(transaction=True)


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


def test_what_is_answered_after_a_run_has_stopped_for_other_options_is_not_told_again(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to one message comes when the run has noticed the change, and sends nothing more."""
    monkeypatch.setattr(runs, "_PULSE", 0.01)
    App.objects.update(max_in_flight=2)
    watch = watches.watch(App.objects.get(), remote.url)
    has_stopped, drop_waiting = threading.Event(), WebhookClient.drop_waiting

    def stop(client: WebhookClient[Any]) -> None:
        has_stopped.set()
        drop_waiting(client)

    def choose_others(request: ReceivedRequest) -> None:
        if request.path == "README.md":
            alice.on_request = lambda _: None
            beside(lambda: watches.change_options(alice_app, watch.repository.public_id, exclude=("*.png",)))
            has_stopped.wait(10)

    monkeypatch.setattr(WebhookClient, "drop_waiting", stop)
    alice.on_request = choose_others
    work()
    assert has_stopped.is_set()
    assert [request.path for request in alice.requests].count("README.md") == 1
    assert set(alice.files_of(watch.repository.public_id)) == {"README.md", "docs/start.md"}
    assert (Watch.objects.get().status, Watch.objects.get().files) == (WatchStatus.SYNCED, 2)
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


def test_other_options_that_are_noticed_before_the_first_answer_let_nothing_more_be_sent(
    alice_app: App, alice: Receiver, many: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the two messages that are under way at that time arrive; those that wait behind them do not."""
    App.objects.update(max_in_flight=2)
    watch = watches.watch(alice_app, many.url)
    noticed, waiting = threading.Event(), []
    wait_for_answers = Run._await_what_was_sent

    def note_and_wait(run: Run) -> None:
        waiting.append(run._client.unanswered)
        noticed.set()
        wait_for_answers(run)

    def choose(_: ReceivedRequest) -> None:
        alice.on_request = lambda _: None
        beside(lambda: watches.change_options(alice_app, watch.repository.public_id, exclude=("*.md",)))
        assert noticed.wait(60)

    monkeypatch.setattr(Run, "_await_what_was_sent", note_and_wait)
    alice.on_request = choose
    work()
    assert waiting[0] == 8
    assert [request.event for request in alice.requests] == ["create", "create", "delete", "delete"]
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


def test_a_refusal_stops_a_delivery_under_way(
    alice_app: App, alice: Receiver, many: HostedRepository, git_host: GitHost, work: Work
) -> None:
    App.objects.update(max_in_flight=1)
    watch = watches.watch(alice_app, many.url)

    def refuse() -> None:
        watch_state.refuse(Watch.objects.get(), AccessDenied("The token was revoked."))

    alice.on_request = lambda _: _after(alice, 10, refuse)
    queue.drop(messages.snapshot_job(watch.repository_id))
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    with git_host.faults.put(GitFault(status=404)):
        work()
    assert 10 <= len(alice.requests) < 20
    assert set(alice.files[watch.repository.public_id]) == set(watch.delivered.values_list("file__path", flat=True))
    assert Watch.objects.get().status == WatchStatus.FAILED


def _after(receiver: Receiver, number: int, act: Callable[[], object]) -> None:
    """Act from another thread and connection while the run waits for the answer to its nth request."""
    if len(receiver.requests) == number:
        beside(act)


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


def test_a_run_that_was_frozen_beyond_its_lock_sends_nothing_more(
    alice_app: App, alice: Receiver, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may have told newer contents meanwhile."""
    watch = watches.watch(alice_app, remote.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    make = Run._tell

    def freeze_and_make(run: Run, *arguments: Any) -> None:
        run._held.lease.lose()
        make(run, *arguments)

    monkeypatch.setattr(Run, "_tell", freeze_and_make)
    with pytest.raises(LockLostError):
        tell.deliver(watch.pk, job_id="test")
    assert alice.requests == []


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
