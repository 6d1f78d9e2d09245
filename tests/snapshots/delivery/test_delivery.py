"""A delivery run: what it writes down, the ids of its messages, their order, and to whom it gives way."""

from datetime import timedelta

import pytest
from django.utils import timezone

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from repositories import watches
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots import look as snapshots
from snapshots.delivery import redelivery, tell
from snapshots.delivery import run as runs
from snapshots.delivery.run import FileMessage
from snapshots.delivery.webhooks import WebhookClient
from snapshots.models import Delivered, Delivery
from tests.support.beside import beside
from tests.support.worker import Work, snapshot

pytestmark = pytest.mark.django_db(transaction=True)


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
    monkeypatch.setattr(runs, "_ANSWERS_IN_A_COMMIT", 8)  # so that a few files fill the window several times
    under_way: list[int] = []

    def count(_: ReceivedRequest) -> None:
        beside(lambda: under_way.append(len(alice.requests) - Delivery.objects.count()))

    alice.on_request = count
    watches.watch(alice_app, many.url)
    work()
    assert max(under_way) <= runs._Window(2).size == 10


def test_the_bodies_of_a_few_messages_are_in_memory_at_once(
    alice_app: App, many: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    App.objects.update(max_in_flight=2)
    submit, unanswered = WebhookClient.submit, []

    def submit_and_look(client: WebhookClient[FileMessage], message: FileMessage) -> None:
        submit(client, message)
        unanswered.append(client.unanswered)

    monkeypatch.setattr(WebhookClient, "submit", submit_and_look)
    watches.watch(alice_app, many.url)
    work()
    assert len(unanswered) > runs._Window(2).ahead
    assert max(unanswered) == runs._Window(2).ahead == 8


@pytest.mark.parametrize(("lanes", "under_way"), [(1, 1), (8, 128 + 8), (32, 128 + 32), (100, 400 + 100)])
def test_as_many_messages_are_under_way_as_documented(lanes: int, under_way: int) -> None:
    """docs/delivery.md: 128, or four times `max_in_flight` if that is more, and those in flight; with 1, one."""
    assert runs._Window(lanes).size == under_way


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


def test_an_endpoint_that_accepts_a_part_of_a_long_run_does_not_fail_any_more(
    alice_app: App, alice: Receiver, many: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watches.watch(alice_app, many.url)
    snapshots.take_snapshot(watch.repository_id, job_id="look")
    App.objects.update(max_in_flight=1, failing_since=timezone.now() - timedelta(days=4))
    monkeypatch.setattr(tell, "_BUDGET", 0.1)
    with alice.faults.put(ReceiverFault(delay=0.02)):
        while not watch.delivered.exists():
            assert tell.deliver(watch.pk, job_id="a part") == 0.0, "the run has not told everything"
    assert App.objects.get().failing_since is None


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
