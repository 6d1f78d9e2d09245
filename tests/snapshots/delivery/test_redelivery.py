"""Telling again: one, a selection, all since a moment, parked files, a whole watch."""

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connections
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts, watches
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.selection import Selection
from snapshots.delivery import _recording, redelivery
from snapshots.models import Delivered, Delivery, Parked
from tests.support.beside import beside
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def watch(watch: Watch, alice: Receiver) -> Watch:
    """A watch in sync, whose receiver expects to be told things again."""
    alice.mirror.repeats_are_allowed = True
    alice.told = told = {request.path: request.headers["webhook-id"] for request in alice.requests}  # type: ignore[attr-defined]
    assert len(told) == 3
    alice.requests.clear()
    return watch


def snapshot(repository: Repository, work: Work) -> None:
    watches.request_snapshot(repository)
    work()


def sent(receiver: Receiver) -> list[tuple[str, str]]:
    return [(request.event, request.path) for request in receiver.requests]


def test_one_delivery_is_told_again_under_its_own_id(watch: Watch, alice: Receiver, work: Work) -> None:
    row = Delivery.objects.get(path="README.md")
    redelivery.redeliver(row)
    work()
    assert sent(alice) == [("create", "README.md")]
    assert alice.requests[0].headers["webhook-id"] == row.message_id
    assert list(Delivery.objects.filter(path="README.md").values_list("manual", flat=True)) == [False, True]
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    snapshot(watch.repository, work)
    assert len(alice.requests) == 1


def test_a_redelivery_that_fails_halfway_goes_on(watch: Watch, alice: Receiver, work: Work) -> None:
    with alice.faults.put(ReceiverFault(path="logo.png", status=500)):
        redelivery.redeliver_many(Delivery.objects.filter(path__in=["README.md", "logo.png"]))
        work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.PENDING
    alice.requests.clear()
    work(also_later_ones=True)
    assert sent(alice) == [("create", "logo.png")]
    watch.refresh_from_db()
    assert (watch.status, watch.asked_again) == (WatchStatus.SYNCED, False)


def test_an_empty_repository_has_nothing_to_be_told_again(alice_app: App, git_host: GitHost, work: Work) -> None:
    watch = watches.watch(alice_app, git_host.create("acme/empty").url)
    work()
    redelivery.retry_parked(watch)
    snapshot(watch.repository, work)
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED


def test_an_old_content_does_not_come_back(watch: Watch, alice: Receiver, remote: HostedRepository, work: Work) -> None:
    first = Delivery.objects.get(path="README.md")
    remote.commit({"README.md": "newer"})
    snapshot(watch.repository, work)
    alice.requests.clear()
    redelivery.redeliver(first)
    work()
    assert alice.requests[0].payload["file"]["content"] == "newer"
    assert alice.files[watch.repository.public_id] == remote.files()


def test_a_delete_is_told_again_unless_the_file_is_back(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": None})
    snapshot(watch.repository, work)
    row = Delivery.objects.get(event="delete")
    alice.requests.clear()
    redelivery.redeliver(row)
    work()
    assert sent(alice) == [("delete", "README.md")]
    assert not Delivered.objects.filter(file__path="README.md").exists()
    remote.commit({"README.md": "back"})
    snapshot(watch.repository, work)
    alice.requests.clear()
    redelivery.redeliver(row)
    work()
    assert sent(alice) == []


def test_everything_since_a_moment(watch: Watch, alice: Receiver, remote: HostedRepository, work: Work) -> None:
    Delivery.objects.update(attempted_at=timezone.now() - timedelta(hours=1))
    remote.commit({"README.md": "two", "logo.png": None})
    snapshot(watch.repository, work)
    alice.requests.clear()
    redelivery.redeliver_since(watch, timezone.now() - timedelta(minutes=5))
    work()
    assert sent(alice) == [("delete", "logo.png"), ("update", "README.md")]


def test_a_selection_of_several_watches(
    watch: Watch, alice: Receiver, bob: Receiver, bob_app: App, remote: HostedRepository, work: Work
) -> None:
    watches.watch(bob_app, remote.url)
    work()
    bob.mirror.repeats_are_allowed = True
    bob.requests.clear()
    redelivery.redeliver_many(Delivery.objects.filter(path="logo.png"))
    work()
    assert sent(alice) == sent(bob) == [("create", "logo.png")]


def test_a_resync_tells_everything_anew(watch: Watch, alice: Receiver, remote: HostedRepository, work: Work) -> None:
    alice.mirror.forget(watch.repository.public_id)
    alice.mirror.repeats_are_allowed = False
    redelivery.resync(watch)
    assert redelivery.progress(watch) == redelivery.Progress(remaining=3, total=3)
    work()
    assert alice.files[watch.repository.public_id] == remote.files()
    assert not {request.headers["webhook-id"] for request in alice.requests} & set(alice.told.values())  # type: ignore[attr-defined]
    assert redelivery.progress(watch).done == 3
    assert alice.problems == []


def test_progress_counts_what_the_watch_wants(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url, selection=Selection(include=("*.md",)))
    work()
    with alice.faults.put(ReceiverFault(status=500)):
        redelivery.resync(watch)
        work()
    assert redelivery.progress(watch) == redelivery.Progress(remaining=2, total=2)


def test_a_resync_still_tells_what_was_deleted_before_it(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": None})
    with alice.faults.put(ReceiverFault(status=503)):
        snapshot(watch.repository, work)
    redelivery.resync(watch)
    work()
    assert alice.files[watch.repository.public_id] == remote.files()


def test_a_resync_in_the_middle_of_a_run_is_not_lost(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({f"{number}.md": "x" for number in range(40)})
    App.objects.update(max_in_flight=1)
    calls = iter(range(1000))

    def resync_once(_: object) -> None:
        if next(calls) == 20:
            beside(lambda: redelivery.resync(watch))

    alice.on_request = resync_once
    snapshot(watch.repository, work)
    paths = [request.path for request in alice.requests]
    assert set(paths[-43:]) == set(remote.files())
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED


def test_an_answer_that_belongs_to_the_time_before_a_resync_does_not_count(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """The request was under way when the resync was asked for, so that file is told once more."""
    remote.commit({"README.md": "changed"})
    alice.requests.clear()

    def resync_once(_: object) -> None:
        alice.on_request = lambda _: None
        beside(lambda: redelivery.resync(watch))

    alice.on_request = resync_once
    snapshot(watch.repository, work)
    told = [request.path for request in alice.requests]
    assert told == ["README.md", *sorted(remote.files())]


def test_a_refusal_that_belongs_to_the_time_before_a_resync_parks_nothing(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": "changed"})

    def resync_once(_: object) -> None:
        alice.on_request = lambda _: None
        beside(lambda: redelivery.resync(watch))

    alice.on_request = resync_once
    with alice.faults.put(ReceiverFault(path="README.md", status=422, times=1)):
        snapshot(watch.repository, work)
    assert alice.files[watch.repository.public_id] == remote.files()
    assert not Parked.objects.exists()


def test_parked_files_are_visible_and_can_be_tried_again(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"large.bin": b"\xff" * 100})
    with alice.faults.put(ReceiverFault(path="large.bin", status=413)):
        snapshot(watch.repository, work)
        redelivery.retry_parked(watch)
        work()
    parked = Parked.objects.get()
    assert (parked.file.path, parked.reason[:3], parked.again) == ("large.bin", "413", False)
    redelivery.retry_parked(watch)
    work()
    assert not Parked.objects.exists()
    assert alice.files[watch.repository.public_id] == remote.files()
    assert list(Delivery.objects.filter(path="large.bin").values_list("manual", flat=True)) == [False, True, True]


def test_a_refused_delete_is_parked_and_can_be_tried_again(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": None})
    with alice.faults.put(ReceiverFault(path="README.md", status=422)):
        snapshot(watch.repository, work)
        redelivery.redeliver(Delivery.objects.get(path="docs/start.md"))
        work()
    assert sent(alice).count(("delete", "README.md")) == 1
    redelivery.retry_parked(watch)
    work()
    assert "README.md" not in alice.files[watch.repository.public_id]
    assert not Parked.objects.exists()


def test_a_retry_by_hand_does_not_wait_for_the_pause(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    settings.RETRY_BASE_DELAY = 1000
    remote.commit({"README.md": "two"})
    with alice.faults.put(ReceiverFault(status=500)):
        snapshot(watch.repository, work)
    alice.requests.clear()
    work()
    assert alice.requests == []
    redelivery.retry_now(watch)
    work()
    assert sent(alice) == [("update", "README.md")]


def test_a_notice_is_said_again_only_while_it_holds(watch: Watch, alice: Receiver, work: Work) -> None:
    row = Delivery.objects.create(watch=watch, message_id="x", event="sync_failed", milliseconds=1)
    redelivery.redeliver(row)
    work()
    assert alice.requests == []
    Repository.objects.update(circuit_open_until="2100-01-01T00:00:00Z")
    redelivery.redeliver(row)
    work()
    assert sent(alice) == [("sync_failed", "")]


class TestCommands:
    def test_a_resync_by_command(self, watch: Watch, alice: Receiver, work: Work) -> None:
        output = run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything")
        assert output == "3 messages to go; acme/handbook has 3 files\n"
        work()
        assert len(alice.requests) == 3

    def test_everything_since_a_moment_by_command(self, watch: Watch, alice: Receiver, work: Work) -> None:
        run("redeliver", watch.app.public_id, watch.repository.public_id, "--since", "2000-01-01T00:00Z")
        work()
        assert len(alice.requests) == 3

    @pytest.fixture
    def busy(self, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
        """The workers do their work whenever the command sleeps."""
        module = "snapshots.management.commands.redeliver"
        monkeypatch.setattr(f"{module}.sleep", lambda _seconds: work(also_later_ones=True))

    def test_it_waits_until_the_app_has_everything(self, watch: Watch, alice: Receiver, busy: None) -> None:
        output = run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")
        assert len(alice.requests) == 3
        watch.refresh_from_db()
        assert output.endswith(f"Alice's search has acme/handbook at {watch.synced_commit[:12]}, with every file.\n")

    def test_a_failure_is_told_while_it_waits_and_waiting_goes_on(
        self, watch: Watch, alice: Receiver, busy: None, settings: Settings
    ) -> None:
        with alice.faults.put(ReceiverFault(status=503, times=1)):
            output = run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")
        assert "503 Service Unavailable; it is tried again" in output
        assert output.endswith("with every file.\n")

    def test_it_does_not_wait_for_an_endpoint_that_goes_on_failing(
        self, watch: Watch, alice: Receiver, busy: None
    ) -> None:
        with alice.faults.put(ReceiverFault(status=503)), pytest.raises(CommandError, match="5 attempts failed: 503"):
            run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")

    def test_it_does_not_wait_for_a_disabled_app(self, watch: Watch, alice: Receiver, busy: None) -> None:
        with (
            alice.faults.put(ReceiverFault(status=410)),
            pytest.raises(CommandError, match=r"was disabled: .* 410 Gone"),
        ):
            run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")
        with pytest.raises(CommandError, match=r"is disabled: .*manage\.py enable_app"):
            run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything")

    def test_files_that_are_refused_are_not_called_delivered(self, watch: Watch, alice: Receiver, busy: None) -> None:
        with alice.faults.put(ReceiverFault(status=422)), pytest.raises(CommandError, match="but for 3 files"):
            run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")

    def test_it_does_not_wait_for_a_worker_that_is_not_there(
        self, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("snapshots.management.commands.redeliver._STANDSTILL", -1)
        with pytest.raises(CommandError, match="No worker takes deliveries: start"):
            run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")

    def test_it_does_not_wait_for_a_watch_that_is_gone(self, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "snapshots.management.commands.redeliver.sleep",
            lambda _seconds: watches.unwatch(watch.app, watch.repository.public_id),
        )
        with pytest.raises(CommandError, match="not watched any more"):
            run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")

    def test_a_watch_that_is_not_there(self) -> None:
        with pytest.raises(CommandError, match="app_x does not watch repo_x"):
            run("redeliver", "app_x", "repo_x", "--now")

    def test_a_ping_by_command(self, alice_app: App, alice: Receiver, git_host: GitHost) -> None:
        assert "/ping answered 200 after" in run("ping", alice_app.public_id)
        with alice.faults.put(ReceiverFault(status=503)), pytest.raises(CommandError, match="503"):
            run("ping", alice_app.public_id)


def run(*words: str) -> str:
    output = StringIO()
    call_command(*words, stdout=output)
    return output.getvalue()


@pytest.mark.parametrize("tell_again", [redelivery.resync, redelivery.retry_parked])
def test_telling_again_and_a_run_never_wait_for_each_other(
    watch: Watch,
    alice: Receiver,
    remote: HostedRepository,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    tell_again: Callable[[Watch], None],
) -> None:
    """Both lock the watch before what hangs on it. The request comes when the run has the one, not yet the other."""
    write_log = _recording.log_attempts

    def write_log_and_wait(*args: Any) -> None:
        monkeypatch.setattr(_recording, "log_attempts", write_log)
        thread.start()
        time.sleep(0.3)
        write_log(*args)

    failures: list[Exception] = []

    def ask() -> None:
        try:
            tell_again(watch)
        except DatabaseError as error:
            failures.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=ask)
    monkeypatch.setattr(_recording, "log_attempts", write_log_and_wait)
    remote.commit({"README.md": "changed"})
    snapshot(watch.repository, work)
    thread.join()
    work()
    assert failures == []
    assert Watch.objects.get().status == WatchStatus.SYNCED
    assert alice.files[watch.repository.public_id] == remote.files()


def test_all_since_a_moment_is_asked_for_once_per_path_however_often_it_was_told(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    for number in range(3):
        remote.commit({"README.md": f"version {number}"})
        snapshot(watch.repository, work)
    alice.requests.clear()
    redelivery.redeliver_since(watch, watch.created_at)
    work()
    assert sorted(path for _, path in sent(alice)) == sorted(remote.files())


def test_a_disabled_app_is_not_waited_for(watch: Watch) -> None:
    accounts.disable_app(watch.app, "for a test")
    with pytest.raises(CommandError, match="is disabled"):
        run("redeliver", watch.app.public_id, watch.repository.public_id, "--everything", "--wait")


@pytest.mark.parametrize("command", [["tick"], ["reconcile"], ["repolocks"], ["redeliver", "a", "r", "--now"]])
def test_without_redis_a_command_says_so_in_a_sentence(monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    nobody = redis.Redis(unix_socket_path="/nowhere/valkey.sock")
    monkeypatch.setattr("repositories.base.connections.connect", lambda **_: nobody)
    with pytest.raises(
        CommandError, match=r"Redis does not answer \(database .*, Redis unix://.*\): is Docora running"
    ):
        run(*command)
