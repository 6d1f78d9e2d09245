"""A notice is told until it is accepted, and then not again: its id, its attempts, and what the log knows of it."""

from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings
from rq.timeouts import JobTimeoutException

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts, circuit, messages, timing, watches
from repositories.base import queue
from repositories.models import App, Repository, Watch
from snapshots.delivery import notices, tell
from snapshots.models import Delivery
from tests.support.notice_cast import events, look
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def test_what_went_wrong_while_the_endpoint_was_disabled_is_told_once_it_is_enabled(
    broken: Watch, alice_app: App, alice: Receiver, bob: Receiver, git_host: GitHost, work: Work
) -> None:
    private = git_host.create("acme/secret", private_to={"alice-token"})
    private.commit({"plan.md": "one"})
    refused = watches.watch(alice_app, private.url, token="alice-token")
    work()
    alice.requests.clear()
    bob.requests.clear()
    accounts.disable_app(alice_app, "for a test")
    git_host.revoke(private, "alice-token")
    Watch.objects.update(access_proven_at=None)
    private.commit({"plan.md": "two"})
    look(refused.repository, work)
    opened = {"circuit_opened_at": timezone.now(), "circuit_open_until": "2100-01-01T00:00:00Z"}
    Repository.objects.filter(pk=broken.repository_id).update(**opened)
    assert alice.requests == []
    accounts.enable_app(alice_app)
    work()
    assert events(alice) == ["sync_failed"] * 2
    told = {request.payload["repository"]["repository_id"] for request in alice.requests}
    assert told == {broken.repository.public_id, refused.repository.public_id}
    accounts.change_base_url(alice_app, f"{alice_app.base_url}/elsewhere")
    work()
    assert events(alice) == ["sync_failed"] * 2, "what was accepted is not told again"
    assert bob.requests == []


def probe_in_vain(repository: Repository, git_host: GitHost, work: Work) -> None:
    """The cooldown is over, and the host is still down."""
    Repository.objects.filter(pk=repository.pk).update(circuit_open_until=timezone.now() - timedelta(seconds=1))
    with git_host.faults.put(GitFault(status=503)):
        look(repository, work)


def test_one_opening_of_the_circuit_is_told_once_however_often_it_is_probed(
    broken: Watch, alice_app: App, alice: Receiver, git_host: GitHost, work: Work
) -> None:
    probe_in_vain(broken.repository, git_host, work)
    accounts.disable_app(alice_app, "for a test")
    accounts.enable_app(alice_app)
    work()
    probe_in_vain(broken.repository, git_host, work)
    accounts.change_base_url(alice_app, f"{alice_app.base_url}/elsewhere")
    work()
    assert events(alice).count("sync_failed") == 1


def test_the_next_opening_of_the_circuit_is_told_as_another_message(
    broken: Watch, alice: Receiver, git_host: GitHost, work: Work, settings: Settings
) -> None:
    Repository.objects.update(circuit_open_until=timezone.now())
    look(broken.repository, work)
    with git_host.faults.put(GitFault(status=503)):
        look(broken.repository, work, times=settings.CIRCUIT_BREAKER_THRESHOLD)
    told = [request.headers["webhook-id"] for request in alice.requests if request.event == "sync_failed"]
    assert len(told) == len(set(told)) == 2


def test_a_notice_that_was_accepted_by_a_host_whose_clock_is_behind_is_not_told_again(
    broken: Watch, alice_app: App, alice: Receiver, work: Work
) -> None:
    opened_at = Repository.objects.get().circuit_opened_at
    assert opened_at
    Delivery.objects.filter(event="sync_failed").update(attempted_at=opened_at - timedelta(seconds=5))
    accounts.change_base_url(alice_app, f"{alice_app.base_url}/elsewhere")
    work()
    assert events(alice).count("sync_failed") == 1


@pytest.mark.parametrize("kind", [notices.Kind.FAILURE, notices.Kind.REFUSAL])
def test_what_the_log_has_forgotten_is_told_again_as_the_same_message(
    broken: Watch, alice_app: App, alice: Receiver, git_host: GitHost, work: Work, kind: notices.Kind
) -> None:
    if kind == notices.Kind.REFUSAL:
        Watch.objects.filter(pk=broken.pk).update(access_denied_at=timezone.now())
        alice.requests.clear()
        notices.announce_refusal(broken.pk)
        work()
    Delivery.objects.all().delete()
    probe_in_vain(broken.repository, git_host, work)
    accounts.change_base_url(alice_app, f"{alice_app.base_url}/elsewhere")
    work()
    told = [request.headers["webhook-id"] for request in alice.requests if request.event == "sync_failed"]
    assert len(told) == 2
    assert len(set(told)) == 1


@pytest.mark.any_database  # PostgreSQL reads so few rows without an index
@pytest.mark.parametrize("kind", [notices.Kind.FAILURE, notices.Kind.REFUSAL])
def test_whether_a_notice_was_accepted_is_read_from_the_log_since_the_trouble_began(
    broken: Watch, kind: notices.Kind
) -> None:
    """Enabling an app asks this of each of its watches, and a log may have a million rows."""
    if kind == notices.Kind.REFUSAL:
        Watch.objects.filter(pk=broken.pk).update(access_denied_at=timezone.now())
    watch = Watch.objects.select_related("app", "repository").get(pk=broken.pk)
    notice = notices._COMPOSERS[kind](watch)
    assert notice
    assert "delivery_of_watch (watch_id=? AND attempted_at>?)" in notices._attempts_at(notice, watch).explain()


def test_the_files_that_an_app_missed_are_requested_although_its_notices_take_too_long(
    broken: Watch, alice_app: App, git_host: GitHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = git_host.create("acme/other")
    other.commit({"plan.md": "one"})
    watches.watch(alice_app, other.url)
    requested: list[int] = []
    monkeypatch.setattr(messages, "deliver", lambda watch_id, **_: requested.append(watch_id))

    def take_too_long(_: Watch) -> None:
        raise JobTimeoutException

    monkeypatch.setattr(notices, "request_missed", take_too_long)
    with pytest.raises(JobTimeoutException):
        tell.resume(alice_app)
    assert len(requested) == 2


def test_a_notice_is_tried_again_with_the_same_id_and_not_when_it_is_stale(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Repository.objects.update(circuit_open_until="2100-01-01T00:00:00Z")
    alice.requests.clear()
    with alice.faults.put(ReceiverFault(status=500, times=2)):
        notices.announce_failure(watch.repository_id)
        work()
        work(also_later_ones=True)
    assert len({request.headers["webhook-id"] for request in alice.requests}) == 1
    assert len(alice.requests) == 2
    Repository.objects.update(circuit_open_until=None)
    work(also_later_ones=True)
    assert len(alice.requests) == 2
    assert [row.status for row in Delivery.objects.filter(event="sync_failed")] == [500, 500]


def test_a_notice_of_recovery_keeps_its_id_although_the_repository_is_looked_at_again(
    broken: Watch, bob: Receiver, work: Work
) -> None:
    Repository.objects.update(circuit_open_until="2000-01-01T00:00:00Z")
    with bob.faults.put(ReceiverFault(events=["sync_recovered"], status=500, times=1)):
        look(broken.repository, work, times=2)
    look(broken.repository, work)
    work(also_later_ones=True)
    told = [request for request in bob.requests if request.event == "sync_recovered"]
    assert [request.status for request in told] == [500, 200]
    assert len({request.headers["webhook-id"] for request in told}) == 1


def forget_requests() -> None:
    if keys := queue.connection().keys("docora:notice*"):
        queue.connection().delete(*keys)


def test_attempts_at_a_notice_end_under_one_id_although_redis_does_not_know_when_it_was_requested(
    broken: Watch, bob_app: App, bob: Receiver, work: Work
) -> None:
    """It was requested before an upgrade, or Redis was emptied since. The repository is looked at meanwhile."""
    circuit.reset(broken.repository)
    watch = Watch.objects.get(app=bob_app)
    bob.requests.clear()
    pauses = []
    with bob.faults.put(ReceiverFault(status=503)):
        for _ in range(20):
            forget_requests()
            Repository.objects.update(last_checked_at=timezone.now())
            pauses.append(notices.send(notices.Kind.RECOVERY, watch.pk))
    assert pauses.index(None) == 19
    assert len({request.headers["webhook-id"] for request in bob.requests}) == 1


def test_redis_knows_when_a_notice_was_requested_until_the_last_attempt_at_it(
    broken: Watch, bob_app: App, work: Work
) -> None:
    """An endpoint may ask for a day before each attempt."""
    [key] = queue.connection().keys(f"docora:notice*:failure:{Watch.objects.get(app=bob_app).pk}")
    assert queue.connection().ttl(key) > 20 * 24 * 3600


def test_a_notice_that_a_person_asks_for_again_gets_all_of_its_attempts(
    broken: Watch, alice: Receiver, settings: Settings
) -> None:
    broken.refresh_from_db()
    with alice.faults.put(ReceiverFault(status=422)):
        for _ in range(2):
            notices.request(notices.Kind.FAILURE, broken)
            pauses = [notices.send(notices.Kind.FAILURE, broken.pk) for _ in range(settings.MAX_RETRY_ATTEMPTS)]
            assert pauses.index(None) == settings.MAX_RETRY_ATTEMPTS - 1


def test_the_rest_that_an_app_asked_for_uses_up_no_attempt_at_a_notice(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Repository.objects.update(circuit_open_until="2100-01-01T00:00:00Z")
    alice.requests.clear()
    timing.rest_app(alice_app, 1000)
    notices.announce_failure(watch.repository_id)
    for _ in range(settings.MAX_RETRY_ATTEMPTS + 1):
        work(also_later_ones=True)
    assert alice.requests == []
    App.objects.update(resting_until=None)
    with alice.faults.put(ReceiverFault(status=400, times=1)):
        work(also_later_ones=True)
        work(also_later_ones=True)
    assert [request.status for request in alice.requests] == [400, 200]


def test_a_notice_survives_an_outage_but_not_a_refusal(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Repository.objects.update(circuit_open_until=timezone.now() + timedelta(hours=1))
    for status, attempts in ((503, settings.MAX_RETRY_ATTEMPTS + 3), (422, settings.MAX_RETRY_ATTEMPTS)):
        alice.requests.clear()
        with alice.faults.put(ReceiverFault(status=status)):
            notices.announce_failure(watch.repository_id)
            for _ in range(settings.MAX_RETRY_ATTEMPTS + 3):
                work(also_later_ones=True)
        work(also_later_ones=True)
        told = [request.status for request in alice.requests if request.event == "sync_failed"]
        assert told == [status] * attempts + ([200] if status == 503 else [])
