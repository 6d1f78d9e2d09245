"""Notices: who is told that a repository cannot be read, what is said, and that it is said once."""

from datetime import timedelta
from smtplib import SMTPServerDisconnected

import pytest
from django.core import mail
from django.utils import timezone
from pytest_django import Settings
from rq.timeouts import JobTimeoutException

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from docora.demo.signatures import stringify
from repositories import accounts, circuit, messages, timing, watches
from repositories.base import queue
from repositories.models import App, Repository, Watch
from snapshots import look as snapshots
from snapshots.delivery import notices, tell
from snapshots.delivery.webhooks import Answer, Message
from snapshots.models import Delivery, Snapshot
from tests.support.api import Api
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def look(repository: Repository, work: Work, *, times: int = 1) -> None:
    for _ in range(times):
        snapshots.take_snapshot(repository.pk, job_id="look")
    work()


def events(receiver: Receiver) -> list[str]:
    return [request.event for request in receiver.requests]


def test_an_open_circuit_is_told_to_every_watching_app_once(
    alice_app: App,
    bob_app: App,
    alice: Receiver,
    bob: Receiver,
    git_host: GitHost,
    remote: HostedRepository,
    work: Work,
    settings: Settings,
) -> None:
    watch = watches.watch(alice_app, remote.url)
    watches.watch(bob_app, remote.url)
    work()
    with git_host.faults.put(GitFault(status=503)):
        look(watch.repository, work, times=settings.CIRCUIT_BREAKER_THRESHOLD + 2)
    assert events(alice).count("sync_failed") == events(bob).count("sync_failed") == 1
    payload = alice.requests[-1].payload
    assert list(payload)[-3:] == ["timestamp", "ref_name", "noticed_at"]
    assert list(payload)[:5] == ["event", "repository", "error", "circuit_breaker", "retry_count"]
    assert payload["error"]["type"] == "git_failure"
    assert list(payload["circuit_breaker"]) == ["status", "consecutive_failures", "threshold", "cooldown_until"]
    assert (payload["circuit_breaker"]["status"], payload["circuit_breaker"]["threshold"]) == ("open", 5)
    assert payload["repository"]["repository_id"] == watch.repository.public_id
    assert stringify(payload) == alice.requests[-1].body
    assert alice.problems == bob.problems == []


@pytest.fixture
def broken(
    alice_app: App, bob_app: App, git_host: GitHost, remote: HostedRepository, work: Work, settings: Settings
) -> Watch:
    """Alice's watch of a repository whose circuit has opened. Bob watches it too, and wants to know of recoveries."""
    accounts.choose_events(bob_app, ["sync_recovered"])
    watch = watches.watch(alice_app, remote.url)
    watches.watch(bob_app, remote.url)
    work()
    with git_host.faults.put(GitFault(status=503)):
        look(watch.repository, work, times=settings.CIRCUIT_BREAKER_THRESHOLD)
    return watch


def test_recovery_is_told_to_who_wants_to_know(broken: Watch, alice: Receiver, bob: Receiver, work: Work) -> None:
    Repository.objects.update(circuit_open_until="2000-01-01T00:00:00Z")
    look(broken.repository, work, times=2)
    assert events(alice)[-1] == "sync_failed"
    assert events(bob)[-1] == "sync_recovered"
    assert events(bob).count("sync_recovered") == 1
    assert bob.requests[-1].payload["circuit_breaker"]["status"] == "closed"


def test_a_refused_token_is_told_to_its_app_alone_and_once(
    alice_app: App, bob_app: App, alice: Receiver, bob: Receiver, git_host: GitHost, work: Work
) -> None:
    private = git_host.create("acme/secret", private_to={"alice-token", "bob-token"})
    private.commit({"plan.md": "one"})
    watch = watches.watch(alice_app, private.url, token="alice-token")
    watches.watch(bob_app, private.url, token="bob-token")
    work()
    git_host.revoke(private, "bob-token")
    for content in ("two", "three"):
        Watch.objects.update(access_proven_at=None)
        private.commit({"plan.md": content})
        look(watch.repository, work)
    assert "sync_failed" not in events(alice)
    assert events(bob).count("sync_failed") == 1
    notice = bob.requests[-1]
    assert "token" in notice.payload["error"]["message"]
    assert b"alice-token" not in notice.body
    assert b"bob-token" not in notice.body
    assert notice.payload["circuit_breaker"]["status"] == "closed"


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


def test_an_accepted_notice_shows_that_the_endpoint_works(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    App.objects.update(failing_since=timezone.now() - timedelta(days=30))
    Repository.objects.update(circuit_open_until="2100-01-01T00:00:00Z")
    notices.announce_failure(watch.repository_id)
    work()
    alice_app.refresh_from_db()
    assert alice_app.failing_since is None


def test_git_output_never_reaches_an_app(alice_app: App, alice: Receiver, remote: HostedRepository, work: Work) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    secret = "fatal: https://bob:ghp_secret@host/ refused bob@example.com"
    Repository.objects.update(last_error=secret, circuit_open_until="2100-01-01T00:00:00Z")
    notices.announce_failure(watch.repository_id)
    work()
    assert alice.requests[-1].event == "sync_failed"
    assert b"bob" not in alice.requests[-1].body


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


def test_a_hanging_app_is_told_in_the_slow_lane(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Repository.objects.update(circuit_open_until="2100-01-01T00:00:00Z")
    settings.SLOW_AFTER = 0.2
    with alice.faults.put(ReceiverFault(delay=0.4)):
        notices.announce_failure(watch.repository_id)
        work()
    alice_app.refresh_from_db()
    assert alice_app.slow_since
    assert [row.error_class for row in Delivery.objects.filter(event="sync_failed")] == ["timeout", ""]


def test_a_ping_says_how_the_endpoint_answers(alice_app: App, alice: Receiver, git_host: GitHost) -> None:
    assert notices.ping(alice_app).status == 200
    assert alice.requests[-1].payload["event"] == "ping"
    with alice.faults.put(ReceiverFault(status=418)):
        assert notices.ping(alice_app).error.startswith("418")
    assert alice.problems == []


def test_the_mail_to_a_contact_survives_an_outage_of_the_mail_server(
    alice_app: App, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    App.objects.update(email="alice@example.com")

    def refuse(**_: object) -> None:
        raise SMTPServerDisconnected

    with monkeypatch.context() as away:
        away.setattr(notices, "send_mail", refuse)
        accounts.disable_app(alice_app, "It answered 410 Gone.")
        for _ in range(8):
            work(also_later_ones=True)
    work(also_later_ones=True)
    [message] = mail.outbox
    assert "410" in message.body


def test_an_app_that_is_enabled_again_is_not_said_to_be_disabled(alice_app: App, work: Work) -> None:
    App.objects.update(email="alice@example.com")
    accounts.disable_app(alice_app, "It answered 410 Gone.")
    accounts.enable_app(alice_app)
    work()
    assert mail.outbox == []


def test_an_app_without_a_contact_gets_no_mail(alice_app: App, work: Work) -> None:
    accounts.disable_app(alice_app, "for a test")
    work()
    assert mail.outbox == []


def test_a_notice_to_an_app_that_stops_watching_meanwhile_is_not_logged_and_no_failure(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Watch.objects.update(access_denied_at=watch.created_at)
    post = notices._post

    def post_and_unwatch(app: App, message: Message, *, timeout: float) -> Answer:
        answer = post(app, message, timeout=timeout)
        watches.unwatch(app, watch.repository.public_id)
        return answer

    monkeypatch.setattr(notices, "_post", post_and_unwatch)
    assert notices.send(notices.Kind.REFUSAL, watch.pk) is None
    assert events(alice)[-1] == "sync_failed"
    assert not Delivery.objects.exists()


@pytest.mark.parametrize("by", ["the operator", "a new token"])
def test_who_wants_to_know_is_told_also_when_a_person_closes_the_circuit(
    broken: Watch, bob: Receiver, work: Work, by: str
) -> None:
    if by == "the operator":
        watches.reset_circuit(broken.repository)
    else:
        watches.change_token(broken.app, broken.repository.public_id, "another")
    work()
    assert events(bob)[-2:] == ["sync_failed", "sync_recovered"]


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


def test_an_endpoint_that_is_gone_for_a_notice_is_gone(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Repository.objects.update(circuit_open_until=timezone.now() + timedelta(hours=1))
    with alice.faults.put(ReceiverFault(status=410)):
        notices.announce_failure(watch.repository_id)
        work()
    alice_app.refresh_from_db()
    assert alice_app.disabled_at


def test_no_app_gets_to_read_gits_own_words(
    alice_app: App, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    """They may name what another app's token has found; the operator has them in the admin."""
    watch = watches.watch(alice_app, remote.url)
    work()
    api = Api(accounts.rotate_bearer_token(alice_app))
    with git_host.faults.put(GitFault(status=503)):
        look(watch.repository, work)
        repository = Repository.objects.get()
        assert "503" in repository.last_error
        for _ in range(2):  # from the watch, then from the repository alone
            [state] = api.get("/api/repositories").json()["repositories"]
            assert state["last_error"] == {
                "code": "host-unavailable",
                "message": "The repository could not be read: its host cannot be reached or does not answer.",
            }
            Watch.objects.update(last_error_code="", last_error="")


def test_a_notice_names_the_branch_of_the_snapshot_that_the_app_has(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """The newest one may be what only the token of another app can read."""
    watch = watches.watch(alice_app, remote.url)
    work()
    Snapshot.objects.create(
        repository=watch.repository, sequence=2, commit_sha="2" * 40, branch="takeover-of-initech", files=0, bytes=0
    )
    Repository.objects.update(sequence=2, circuit_open_until="2100-01-01T00:00:00Z")
    notices.announce_failure(watch.repository_id)
    work()
    assert alice.requests[-1].event == "sync_failed"
    assert alice.requests[-1].payload["ref_name"] == "main"


def test_a_notice_that_is_answered_with_a_pause_makes_the_app_rest_and_waits_for_its_end(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    Repository.objects.update(circuit_open_until="2100-01-01T00:00:00Z")
    alice.requests.clear()
    with alice.faults.put(ReceiverFault(status=429, headers={"Retry-After": "1000"})):
        notices.send(notices.Kind.FAILURE, watch.pk)
    alice_app.refresh_from_db()
    assert timing.seconds_of_rest(alice_app) > 900
    pause = notices.send(notices.Kind.FAILURE, watch.pk)
    assert pause
    assert pause > 900
    assert len(alice.requests) == 1
