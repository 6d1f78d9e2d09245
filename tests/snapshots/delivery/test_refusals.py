"""Endpoints that refuse some of what they are told: what is parked, what is tried again, and when."""

from datetime import timedelta
from itertools import count

import pytest
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from repositories import accounts, watch_state, watches
from repositories.base import queue
from repositories.errors import HostUnavailable
from repositories.models import App, Watch, WatchStatus
from repositories.selection import Selection
from snapshots.delivery import redelivery, tell
from snapshots.look import take_snapshot
from snapshots.models import ACCEPTED, NOT_ACCEPTED, REFUSED, Delivered, Delivery, Parked
from tests.snapshots.delivery.test_webhooks import server
from tests.support.databases import first_on_every_database
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


class NoPictures(ReceiverFault):
    def concerns(self, request: ReceivedRequest) -> bool:
        return (request.path or "").endswith(".png")


class EveryFifth(ReceiverFault):
    numbers = count(1)

    def concerns(self, request: ReceivedRequest) -> bool:
        return next(self.numbers) % 5 == 0


@pytest.fixture
def pictures(git_host: GitHost) -> HostedRepository:
    return git_host.create("acme/pictures")


SIXTY = {f"assets/{number:03}.png": b"\x89PNG%d" % number for number in range(60)}


def snapshot(watch: Watch, work: Work) -> None:
    watches.request_snapshot(watch.repository)
    work()


def try_again(work: Work) -> Watch:
    Watch.objects.update(retry_at=None)
    work(also_later_ones=True)
    return Watch.objects.get()


def test_who_does_not_have_what_it_is_to_delete_gets_it_when_it_comes_back(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """A delete whose answer was lost meets an app that has deleted the file already."""
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"README.md": None})
    with alice.faults.put(ReceiverFault(events=("delete",), status=500, after_applying=True, times=1)):
        snapshot(watch, work)
    with alice.faults.put(ReceiverFault(events=("delete",), status=404)):
        assert try_again(work).status == WatchStatus.SYNCED
    assert Parked.objects.count() == 0
    attempt = Delivery.objects.get(status=404)
    assert (attempt.was_accepted, attempt.error, attempt.error_class) == (True, "", "")
    assert [list(Delivery.objects.filter(each, status=404)) for each in (ACCEPTED, NOT_ACCEPTED)] == [[attempt], []]
    assert not Delivery.objects.filter(REFUSED, status=404).exists()
    remote.commit({"README.md": "# Handbook\n"})
    snapshot(watch, work)
    assert alice.files[watch.repository.public_id] == remote.files()


@pytest.mark.parametrize("status", first_on_every_database([401, 403, 404, 405, 407, 408, 425, 429, 500, 503]))
def test_an_answer_that_is_about_the_endpoint_or_the_moment_parks_nothing(
    alice_app: App, alice: Receiver, pictures: HostedRepository, work: Work, status: int
) -> None:
    """Even if another file was accepted, and the endpoint was tried often enough."""
    pictures.commit({"a.md": "taken", "b.md": "not now"})
    App.objects.update(max_in_flight=1)
    with alice.faults.put(ReceiverFault(path="b.md", status=status)):
        watch = watches.watch(alice_app, pictures.url)
        work()
    watch.refresh_from_db()
    assert (watch.status, watch.retry_count) == (WatchStatus.PENDING, 1)
    assert not Parked.objects.exists()
    assert try_again(work).status == WatchStatus.SYNCED
    assert alice.files[watch.repository.public_id] == pictures.files()


def test_a_parked_file_is_not_sent_again_when_an_interrupted_first_sync_goes_on(
    alice_app: App, alice: Receiver, pictures: HostedRepository, work: Work
) -> None:
    pictures.commit({"a.png": "no", "b.md": "not now"})
    App.objects.update(max_in_flight=1)
    with alice.faults.put(NoPictures(status=422)), alice.faults.put(ReceiverFault(path="b.md", status=503, times=1)):
        watch = watches.watch(alice_app, pictures.url)
        work()
        assert Watch.objects.get().status == WatchStatus.PENDING
        assert try_again(work).status == WatchStatus.SYNCED
    assert [request.path for request in alice.requests] == ["a.png", "b.md", "b.md"]
    assert alice.files[watch.repository.public_id] == {"b.md": b"not now"}


@pytest.mark.parametrize("status", first_on_every_database([409, 413, 415, 422]))
def test_a_file_that_is_surely_refused_is_parked_although_nothing_was_accepted_yet(
    alice_app: App, alice: Receiver, pictures: HostedRepository, work: Work, status: int
) -> None:
    pictures.commit(SIXTY)
    with alice.faults.put(ReceiverFault(status=status)):
        watch = watches.watch(alice_app, pictures.url)
        work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert Parked.objects.count() == 60


@pytest.mark.parametrize("in_sync", [False, True], ids=["first sync", "later"])
def test_any_number_of_files_that_are_surely_refused_holds_up_no_other(
    alice_app: App, alice: Receiver, pictures: HostedRepository, work: Work, in_sync: bool
) -> None:
    pictures.commit({"z.md": "text"})
    if in_sync:
        watches.watch(alice_app, pictures.url)
        work()
    pictures.commit(SIXTY | {"z.md": "changed"})
    with alice.faults.put(NoPictures(status=415)):
        watch = Watch.objects.first() or watches.watch(alice_app, pictures.url)
        snapshot(watch, work)
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert Parked.objects.count() == 60
    assert alice.files[watch.repository.public_id] == {"z.md": b"changed"}


def test_refusals_that_may_be_the_endpoints_fault_are_believed_after_some_attempts(
    alice_app: App, alice: Receiver, pictures: HostedRepository, work: Work, settings: Settings
) -> None:
    pictures.commit(SIXTY | {"z.md": "text"})
    with alice.faults.put(NoPictures(status=400)):
        watches.watch(alice_app, pictures.url)
        work()
        for _ in range(settings.MAX_RETRY_ATTEMPTS - 1):
            assert Parked.objects.count() == 0
            try_again(work)
        assert try_again(work).status == WatchStatus.SYNCED
    assert (Parked.objects.count(), Delivered.objects.count()) == (60, 1)


def test_failed_looks_are_no_attempts_to_deliver(
    alice_app: App, alice: Receiver, pictures: HostedRepository, work: Work, settings: Settings
) -> None:
    pictures.commit({"z.md": "text"})
    watch = watches.watch(alice_app, pictures.url)
    work()
    watch_state.note_repository_failure(Watch.objects.all(), HostUnavailable("away"), failures=99)
    pictures.commit(SIXTY)
    with alice.faults.put(ReceiverFault(status=400)):
        snapshot(watch, work)
    watch.refresh_from_db()
    assert (watch.status, watch.retry_count) == (WatchStatus.PENDING, 1)
    assert not Parked.objects.exists()


def test_a_failed_look_does_not_make_the_endpoint_look_well(
    alice_app: App, alice: Receiver, pictures: HostedRepository, work: Work, settings: Settings
) -> None:
    pictures.commit({"z.md": "text"})
    with alice.faults.put(ReceiverFault(status=503)):
        watches.watch(alice_app, pictures.url)
        work()
        for _ in range(settings.MAX_RETRY_ATTEMPTS - 1):
            before = try_again(work)
        watch_state.note_repository_failure(Watch.objects.all(), HostUnavailable("away"), failures=1)
        assert Watch.objects.get().retry_count == before.retry_count
        watch = try_again(work)
    assert (watch.status, watch.last_error_code) == (WatchStatus.FAILED, "delivery-failed")
    assert watch.retry_count == settings.MAX_RETRY_ATTEMPTS + 1


def test_who_takes_a_part_each_time_is_not_made_to_wait_longer_and_longer(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work
) -> None:
    many = git_host.create("acme/many")
    many.commit({f"{number:03}.md": f"number {number}\n" for number in range(40)})
    App.objects.update(max_in_flight=1)
    with alice.faults.put(EveryFifth(status=500)):
        watch = watches.watch(alice_app, many.url)
        work()
        for _ in range(20):
            watch.refresh_from_db()
            if watch.status == WatchStatus.SYNCED:
                break
            assert watch.retry_count == 1
            try_again(work)
    assert alice.files[watch.repository.public_id] == many.files()


@pytest.mark.parametrize("by", ["nothing to tell", "everything refused"])
def test_a_run_in_which_nothing_is_accepted_says_nothing_good_of_the_endpoint(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, by: str
) -> None:
    watch = watches.watch(alice_app, remote.url, selection=Selection(include=("*.md",)))
    work()
    long_ago = timezone.now() - timedelta(days=4)
    App.objects.update(failing_since=long_ago, slow_since=long_ago)
    remote.commit({"other.txt" if by == "nothing to tell" else "other.md": "content"})
    with alice.faults.put(ReceiverFault(status=422)):
        snapshot(watch, work)
    alice_app.refresh_from_db()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert (alice_app.failing_since, alice_app.slow_since) == (long_ago, long_ago)


def test_a_branch_that_is_gone_takes_nothing_away_from_what_was_seen_of_it(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.point("topic", remote.tip() or "")
    with alice.faults.put(ReceiverFault(status=500)):
        watch = watches.watch(alice_app, remote.url, ref="topic")
        work()
    remote.delete_branch("topic")
    Watch.objects.update(access_proven_at=timezone.now() - timedelta(days=1))
    assert try_again(work).status == WatchStatus.SYNCED
    assert alice.files[watch.repository.public_id] == remote.files()


def test_a_file_that_takes_long_gives_way_and_has_all_the_time_in_the_slow_lane(
    alice_app: App, alice: Receiver, git_host: GitHost, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES = settings.BINARY_CHUNK_SIZE_BYTES = 100
    monkeypatch.setattr(tell, "_BUDGET", 0.2)
    alice.mirror.repeats_are_allowed = True
    large = git_host.create("acme/large")
    large.commit({"large.bin": b"\xff" * 2000})
    watch = watches.watch(alice_app, large.url)
    take_snapshot(watch.repository_id, job_id="look")
    with alice.faults.put(ReceiverFault(delay=0.05)):
        assert tell.deliver(watch.pk, job_id="fast", lane=queue.DELIVERIES) is None
        assert len(alice.requests) < 27, "it went on to the end"
        alice_app.refresh_from_db()
        assert alice_app.slow_since
        assert tell.deliver(watch.pk, job_id="slow", lane=queue.SLOW_DELIVERIES) is None
    assert alice.files[watch.repository.public_id] == large.files()
    alice_app.refresh_from_db()
    assert alice_app.slow_since is None


def test_an_answer_in_another_encoding_is_kept_as_well_as_it_goes(
    alice_app: App, remote: HostedRepository, work: Work
) -> None:
    answer = b"HTTP/1.1 422 Donn\xe9es refus\xe9es\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    def refuse(connection: object) -> None:
        connection.recv(1 << 16)  # type: ignore[attr-defined]
        connection.sendall(answer)  # type: ignore[attr-defined]

    with server(refuse) as url:
        App.objects.update(base_url=url)
        watches.watch(alice_app, remote.url)
        work()
    assert Watch.objects.get().status == WatchStatus.SYNCED
    assert {row.error for row in Delivery.objects.all()} == {"422 Donn?es refus?es"}


def test_a_refused_file_is_parked_also_while_a_key_is_being_rotated(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """The receiver knows the new key alone: what it says to the old one says nothing about the file."""
    alice.webhook_keys = (accounts.rotate_webhook_key(alice_app),)
    with alice.faults.put(ReceiverFault(path="README.md", status=400, times=1)):
        watches.watch(alice_app, remote.url)
        work()
    assert Watch.objects.get().status == WatchStatus.SYNCED
    assert [parked.file.path for parked in Parked.objects.select_related("file")] == ["README.md"]


@pytest.fixture
def refusing(alice_app: App, alice: Receiver, remote: HostedRepository, work: Work) -> Watch:
    """Alice has refused README.md, and has the rest."""
    with alice.faults.put(ReceiverFault(path="README.md", status=422)):
        watch = watches.watch(alice_app, remote.url)
        work()
    assert [parked.file.path for parked in Parked.objects.select_related("file")] == ["README.md"]
    return watch


def test_a_refused_file_that_is_deleted_is_parked_no_more(
    refusing: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"other.md": "Other.\n"})
    snapshot(refusing, work)
    assert Parked.objects.count() == 1, "it is still what the repository has"
    told = len(alice.requests)
    remote.commit({"README.md": None})
    snapshot(refusing, work)
    assert Parked.objects.count() == 0
    assert len(alice.requests) == told, "the app has nothing to delete"


def test_a_refused_content_that_comes_back_after_another_one_was_taken_is_sent_again(
    refusing: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """The run in which the other one was taken has not come to its end."""
    App.objects.update(max_in_flight=1)
    remote.commit({"README.md": "# Taken\n", "docs/start.md": "Not now.\n"})
    with alice.faults.put(ReceiverFault(path="docs/start.md", status=503)):
        snapshot(refusing, work)
    assert alice.files[refusing.repository.public_id]["README.md"] == b"# Taken\n"
    assert Watch.objects.get().status == WatchStatus.PENDING
    remote.commit({"README.md": "# Handbook\n"})
    snapshot(refusing, work)
    assert try_again(work).status == WatchStatus.SYNCED
    assert alice.files[refusing.repository.public_id] == remote.files()


def test_a_refused_update_that_is_taken_back_is_parked_no_more(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": "# Refused\n"})
    with alice.faults.put(ReceiverFault(status=422)):
        snapshot(watch, work)
    assert Parked.objects.count() == 1
    remote.commit({"README.md": "# Handbook\n"})
    snapshot(watch, work)
    assert Parked.objects.count() == 0
    assert alice.files[watch.repository.public_id] == remote.files()


def test_a_refused_delete_is_parked_until_the_file_is_back(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": None})
    with alice.faults.put(ReceiverFault(events=("delete",), status=422)):
        snapshot(watch, work)
    remote.commit({"other.md": "Other.\n"})
    snapshot(watch, work)
    assert Parked.objects.count() == 1
    remote.commit({"README.md": "# Handbook\n"})
    snapshot(watch, work)
    assert Parked.objects.count() == 0
    assert alice.files[watch.repository.public_id] == remote.files()


def test_to_retry_what_is_gone_for_long_forgets_it(refusing: Watch, remote: HostedRepository, work: Work) -> None:
    """Rows of earlier versions, which kept them."""
    (parked,) = Parked.objects.all()
    remote.commit({"README.md": None})
    snapshot(refusing, work)
    parked.save(force_insert=True)
    redelivery.retry_parked(refusing)
    work()
    assert Parked.objects.count() == 0
    assert Watch.objects.get().status == WatchStatus.SYNCED
