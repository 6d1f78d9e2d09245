"""sync_complete: when it is sent, what it says, and that it is sent until it is answered or overtaken."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from docora.demo.bare import submodule
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from docora.demo.signatures import stringify
from repositories import accounts, timing, watches
from repositories.base import queue
from repositories.models import App, Repository, Watch
from repositories.repo_lock import repo_lock
from repositories.selection import Selection
from snapshots import schedule
from snapshots.delivery import completion, notices, redelivery, tell
from snapshots.delivery.run import lock_key
from snapshots.look import take_snapshot
from snapshots.models import Completion, Delivery, Snapshot
from tests.snapshots.test_digests import of_contents
from tests.support.worker import Look, Work

pytestmark = pytest.mark.django_db(transaction=True)

COUNTS = {"created": 0, "updated": 0, "deleted": 0, "parked": 0, "left_out": 0}


@pytest.fixture
def alice_app(alice_app: App) -> App:
    """Alice wants to know when she has all of a commit."""
    accounts.choose_events(alice_app, ["sync_complete"])
    return alice_app


def told(receiver: Receiver) -> list[ReceivedRequest]:
    return [request for request in receiver.requests if request.event == "sync_complete"]


def last_payload(receiver: Receiver) -> dict[str, Any]:
    assert receiver.requests[-1].event == "sync_complete"
    return receiver.requests[-1].payload


def test_it_comes_after_the_last_file_and_its_digest_is_the_receivers(
    watch: Watch, remote: HostedRepository, alice: Receiver
) -> None:
    assert [request.event for request in alice.requests] == ["create"] * 3 + ["sync_complete"]
    payload = last_payload(alice)
    assert list(payload) == [
        "event", "repository", "commit_sha", "previous_commit_sha", "counts", "files", "digest", "times",
        "timestamp", "ref_name", "noticed_at",
    ]  # fmt: skip
    assert payload["repository"]["repository_id"] == watch.repository.public_id
    assert (payload["commit_sha"], payload["previous_commit_sha"]) == (remote.tip(), None)
    assert payload["counts"] == COUNTS | {"created": 3}
    has = of_contents(remote.files())
    assert (payload["files"], payload["digest"]) == (has.files, has.digest)
    assert list(payload["times"]) == ["noticed_at", "fetched_at", "first_acknowledged_at", "last_acknowledged_at"]
    times = [datetime.fromisoformat(moment) for moment in payload["times"].values()]
    assert times == sorted(times)
    assert payload["noticed_at"] == payload["times"]["noticed_at"]
    assert stringify(payload) == alice.requests[-1].body
    assert alice.problems == []
    assert not Completion.objects.filter(pending=True).exists()


def test_it_counts_what_brought_the_app_from_the_last_complete_commit_to_this_one(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look
) -> None:
    before = remote.tip()
    remote.commit({"README.md": "two", "docs/start.md": None, "new.md": "three", "newer.md": "four"})
    look()
    payload = last_payload(alice)
    assert payload["counts"] == COUNTS | {"created": 2, "updated": 1, "deleted": 1}
    assert (payload["previous_commit_sha"], payload["commit_sha"]) == (before, remote.tip())
    assert len({request.headers["webhook-id"] for request in told(alice)}) == 2
    assert alice.problems == []


def test_a_commit_that_changes_nothing_for_this_app_is_complete_too(
    alice_app: App, remote: HostedRepository, alice: Receiver, look: Look, work: Work
) -> None:
    watches.watch(alice_app, remote.url, selection=Selection(include=("*.md",)))
    work()
    remote.commit({"other.txt": "not wanted"})
    look()
    payload = last_payload(alice)
    assert payload["commit_sha"] == remote.tip()
    assert payload["counts"] == COUNTS
    assert payload["times"]["first_acknowledged_at"] is None
    assert payload["times"]["last_acknowledged_at"] is None
    assert Completion.objects.latest("pk").latency_ms is None


def test_a_parked_file_completes_the_commit_and_is_counted(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look
) -> None:
    remote.commit({"README.md": "refused", "new.md": "taken"})
    with alice.faults.put(ReceiverFault(path="README.md", status=422)):
        look()
    payload = last_payload(alice)
    assert payload["counts"] == COUNTS | {"created": 1, "parked": 1}
    assert payload["files"] == 4
    assert alice.problems == []


def test_a_file_that_is_refused_in_two_commits_of_one_step_is_counted_once(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look
) -> None:
    remote.commit({"new.md": "refused", "README.md": "not yet"})
    with alice.faults.put(ReceiverFault(path="new.md", status=422)):
        with alice.faults.put(ReceiverFault(path="README.md", status=500)):
            look()
        remote.commit({"new.md": "refused again"})
        look()
    assert [attempt.status for attempt in Delivery.objects.filter(path="new.md")] == [422, 422]
    assert last_payload(alice)["counts"] == COUNTS | {"updated": 1, "parked": 1}
    remote.commit({"other.md": "taken"})
    look()
    assert last_payload(alice)["counts"] == COUNTS | {"created": 1}


def test_what_is_left_out_is_counted_once(
    alice_app: App, git_host: GitHost, alice: Receiver, look: Look, work: Work, settings: Settings
) -> None:
    settings.MAX_FILE_BYTES = 100
    remote = git_host.create("acme/large")
    remote.commit({"a.md": "x", "huge.md": "x" * 200, "large.md": "x" * 50})
    remote.commit({"vendor": submodule("1" * 40)})
    watches.watch(alice_app, remote.url, selection=Selection(exclude=("*.log",), max_file_size=20))
    work()
    assert last_payload(alice)["counts"] == COUNTS | {"created": 1, "left_out": 3}
    remote.commit({"b.md": "y", "other.md": "x" * 30, "large.log": "x" * 30})
    look()
    assert last_payload(alice)["counts"] == COUNTS | {"created": 1, "left_out": 1}


def test_an_app_that_does_not_want_it_is_not_told(
    watch: Watch, bob_app: App, remote: HostedRepository, bob: Receiver, work: Work
) -> None:
    watches.watch(bob_app, remote.url)
    work()
    schedule.tick()
    work()
    assert {request.event for request in bob.requests} == {"create"}
    accounts.choose_events(bob_app, ["sync_complete"])
    schedule.tick()
    work()
    assert not told(bob)  # from the next commit on


def test_it_is_sent_again_with_the_same_id_until_it_is_accepted(
    alice_app: App, remote: HostedRepository, alice: Receiver, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_ATTEMPTS", 2)  # for other notices
    with alice.faults.put(ReceiverFault(events=["sync_complete"], status=500, times=3)):
        watches.watch(alice_app, remote.url)
        work()
        assert Watch.objects.get().status == "synced"  # the files do not wait for it
        for _ in range(4):
            work(also_later_ones=True)
    assert [request.status for request in told(alice)] == [500, 500, 500, 200]
    assert len({request.headers["webhook-id"] for request in told(alice)}) == 1
    assert [row.status for row in Delivery.objects.filter(event="sync_complete")] == [500, 500, 500, 200]
    work(also_later_ones=True)
    assert len(told(alice)) == 4


def test_an_endpoint_that_refuses_it_is_asked_as_often_as_for_a_notice(
    alice_app: App, remote: HostedRepository, alice: Receiver, work: Work, settings: Settings
) -> None:
    with alice.faults.put(ReceiverFault(events=["sync_complete"], status=422)):
        watches.watch(alice_app, remote.url)
        for _ in range(settings.MAX_RETRY_ATTEMPTS + 3):
            work(also_later_ones=True)
    assert len(told(alice)) == settings.MAX_RETRY_ATTEMPTS
    schedule.tick()
    work()
    assert len(told(alice)) == settings.MAX_RETRY_ATTEMPTS


def test_a_completion_that_is_overtaken_is_not_told_any_more(
    alice_app: App, remote: HostedRepository, alice: Receiver, look: Look, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(events=["sync_complete"], status=500)):
        watches.watch(alice_app, remote.url)
        work()
        remote.commit({"README.md": "two"})
        look()
    for _ in range(3):
        work(also_later_ones=True)
    accepted = [request for request in told(alice) if request.status == 200]
    assert [request.payload["commit_sha"] for request in accepted] == [remote.tip()]


def test_a_commit_that_is_overtaken_before_it_is_complete_has_none(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look, work: Work
) -> None:
    first = remote.tip()
    remote.commit({"a.md": "one", "b.md": "one"})
    with alice.faults.put(ReceiverFault(path="b.md", status=500)):
        look()
    remote.commit({"b.md": "two"})
    Watch.objects.update(retry_at=None)
    look()
    work(also_later_ones=True)
    assert list(Completion.objects.order_by("pk").values_list("commit_sha", flat=True)) == [first, remote.tip()]
    payload = last_payload(alice)
    assert payload["previous_commit_sha"] == first
    assert payload["counts"] == COUNTS | {"created": 2}, "what the app took of the commit in between counts"


def test_what_is_asked_for_after_the_last_answer_is_not_complete_yet(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has told all that it knew of; then somebody asks for everything again, and only then it is recorded."""
    alice.mirror.repeats_are_allowed = True
    record = completion.record
    completed: list[int] = []

    def record_late(watch: Watch, snapshot: Snapshot) -> float | None:
        if not completed:
            redelivery.resync(watch)
        latency = record(watch, snapshot)
        completed.append(Completion.objects.count())
        return latency

    monkeypatch.setattr(completion, "record", record_late)
    remote.commit({"README.md": "two"})
    look()
    assert completed == [1, 2], "the first sync; what was asked for again"


def test_it_is_not_sent_once_the_app_has_a_part_of_the_next_commit(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look
) -> None:
    Completion.objects.update(pending=True)
    alice.requests.clear()
    remote.commit({"a.md": "two", "b.md": "two"})
    with alice.faults.put(ReceiverFault(path="b.md", status=500)):
        look()
    assert completion.send(watch.pk, job_id="test", lane="deliveries") is None
    assert not told(alice)
    assert not Completion.objects.filter(pending=True).exists()


def test_it_is_not_sent_once_the_app_may_have_a_part_of_the_next_commit(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look, work: Work
) -> None:
    Completion.objects.update(pending=True)
    alice.requests.clear()
    remote.commit({"a.md": "two"})
    with alice.faults.put(ReceiverFault(path="a.md", reset=True, after_applying=True)):
        look()
    assert completion.send(watch.pk, job_id="test", lane="deliveries") is None
    assert not told(alice)
    alice.mirror.repeats_are_allowed = True
    work(also_later_ones=True)
    assert last_payload(alice)["commit_sha"] == remote.tip()
    assert last_payload(alice)["digest"] == of_contents(remote.files()).digest


def test_a_worker_that_dies_before_it_is_sent_loses_nothing(
    alice_app: App, remote: HostedRepository, alice: Receiver, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(completion, "announce", die)
        watches.watch(alice_app, remote.url)
        with pytest.raises(Killed):
            work()
    assert not told(alice)
    schedule.tick()
    work()
    assert len(told(alice)) == 1


def test_two_runs_that_end_with_the_same_commit_complete_it_once(watch: Watch) -> None:
    snapshot = Snapshot.objects.get()
    assert completion.record(Watch.objects.get(pk=watch.pk), snapshot) is None
    assert Completion.objects.count() == 1


def test_it_waits_while_its_app_rests(watch: Watch, alice_app: App, alice: Receiver) -> None:
    Completion.objects.update(pending=True)
    alice.requests.clear()
    timing.rest_app(alice_app, 1000)
    pause = completion.send(watch.pk, job_id="test", lane="deliveries")
    assert pause
    assert pause > 900
    assert not told(alice)


def test_it_is_requested_by_the_end_of_a_run_that_kept_it_waiting(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own job found the lock busy and left; here the run itself does not get to tell it."""
    remote.commit({"README.md": "two"})
    with monkeypatch.context() as patched:
        patched.setattr("snapshots.delivery.tell.completion.announce", lambda *_: None)
        watches.request_snapshot(watch.repository)
        tell.deliver(watch.pk, job_id="test")
        take_snapshot(watch.repository_id, job_id="look")
        tell.deliver(watch.pk, job_id="test")
    assert queue.is_alive(f"complete-{watch.pk}")


def test_it_waits_while_files_are_on_their_way(watch: Watch, alice: Receiver) -> None:
    Completion.objects.update(pending=True)
    alice.requests.clear()
    with repo_lock(lock_key(watch), job_id="a run"):
        assert completion.send(watch.pk, job_id="test", lane="deliveries") is None
    assert not told(alice)
    assert completion.send(watch.pk, job_id="test", lane="deliveries") is None
    assert len(told(alice)) == 1


def test_a_delivery_that_it_kept_waiting_is_requested_at_its_end(
    watch: Watch, remote: HostedRepository, alice: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    Completion.objects.update(pending=True)
    announce = completion.announce

    def announce_beside_a_commit(*arguments: Any) -> float | None:
        remote.commit({"README.md": "two"})
        take_snapshot(watch.repository_id, job_id="look")
        queue.drop(f"deliver-{watch.pk}")
        tell.deliver(watch.pk, job_id="another")
        return announce(*arguments)

    monkeypatch.setattr(completion, "announce", announce_beside_a_commit)
    tell.send_complete(watch.pk, job_id="test", lane="deliveries")
    assert queue.is_alive(f"deliver-{watch.pk}")


@pytest.mark.parametrize("ask", [redelivery.resync, redelivery.retry_parked])
def test_what_somebody_asked_for_again_is_complete_again(watch: Watch, alice: Receiver, work: Work, ask: Any) -> None:
    first = last_payload(alice)
    alice.mirror.repeats_are_allowed = True
    ask(watch)
    work()
    again = last_payload(alice)
    assert len({request.headers["webhook-id"] for request in told(alice)}) == 2
    assert (again["digest"], again["commit_sha"]) == (first["digest"], first["commit_sha"])
    assert again["previous_commit_sha"] == first["commit_sha"]


def test_an_operator_can_have_the_last_one_sent_again(watch: Watch, alice: Receiver, work: Work) -> None:
    alice.mirror.repeats_are_allowed = True
    redelivery.redeliver(Delivery.objects.get(event="sync_complete"))
    work()
    assert len(told(alice)) == 2
    assert len({request.headers["webhook-id"] for request in told(alice)}) == 1


def test_an_app_that_does_not_want_it_any_more_is_not_asked_again(
    alice_app: App, remote: HostedRepository, alice: Receiver, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(events=["sync_complete"], status=500)):
        watches.watch(alice_app, remote.url)
        work()
    attempts = len(told(alice))
    assert attempts
    accounts.choose_events(alice_app, [])
    work(also_later_ones=True)
    assert len(told(alice)) == attempts
    assert not Completion.objects.filter(pending=True).exists()


def test_an_endpoint_that_hangs_is_told_in_the_slow_lane(
    watch: Watch, alice: Receiver, work: Work, settings: Settings
) -> None:
    Completion.objects.update(pending=True)
    Delivery.objects.all().delete()
    settings.SLOW_AFTER = 0.3
    with alice.faults.put(ReceiverFault(events=["sync_complete"], delay=0.6)):
        completion.send(watch.pk, job_id="test", lane=queue.DELIVERIES)
        work()
    assert [row.error_class for row in Delivery.objects.order_by("pk")] == ["timeout", ""]


def test_an_endpoint_that_is_too_slow_for_the_urgent_lane_is_told_in_the_ordinary_one(
    watch: Watch, alice_app: App, alice: Receiver, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    Completion.objects.update(pending=True)
    monkeypatch.setattr("snapshots.delivery.endpoint._URGENT_TIMEOUT", 0.3)
    alice.requests.clear()
    with alice.faults.put(ReceiverFault(events=["sync_complete"], delay=0.8, times=1)):
        completion.send(watch.pk, job_id="test", lane=queue.URGENT)
    alice_app.refresh_from_db()
    assert alice_app.slow_since is None
    work()
    assert not Completion.objects.filter(pending=True).exists()


def test_a_disabled_app_is_told_once_it_is_enabled(
    alice_app: App, remote: HostedRepository, alice: Receiver, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(events=["sync_complete"], status=410)):
        watches.watch(alice_app, remote.url)
        work()
    alice_app.refresh_from_db()
    assert alice_app.disabled_at
    schedule.tick()
    work()
    assert len(told(alice)) == 1
    accounts.enable_app(alice_app)
    schedule.tick()
    work()
    assert [request.status for request in told(alice)] == [410, 200]


@pytest.mark.parametrize("is_kept", [True, False])
def test_the_latency_is_that_of_the_oldest_commit_which_the_app_did_not_have(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look, is_kept: bool
) -> None:
    assert Completion.objects.get().latency_ms is None  # a first sync: its commit may be years old
    long_ago = timezone.now() - timedelta(minutes=10)
    with alice.faults.put(ReceiverFault(status=500)):
        Repository.objects.update(noticed_at=long_ago)
        remote.commit({"README.md": "two"})
        look()
    if not is_kept:
        Snapshot.objects.order_by("sequence")[0].delete()  # what the app has; history is trimmed
    remote.commit({"README.md": "three"})
    Watch.objects.update(retry_at=None)
    look()
    latency = Completion.objects.latest("pk").latency_ms
    assert latency
    assert 600_000 <= latency < 700_000


def test_completions_are_kept_as_long_as_the_log_of_deliveries(watch: Watch, settings: Settings) -> None:
    Completion.objects.update(completed_at=timezone.now() - timedelta(days=settings.DELIVERY_LOG_DAYS + 1))
    schedule.tick()
    assert not Completion.objects.exists()
