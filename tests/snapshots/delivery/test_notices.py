"""Notices: who is told that a repository cannot be read, what is said, and that it is said once."""

from datetime import timedelta
from smtplib import SMTPServerDisconnected

import pytest
from django.core import mail
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from docora.demo.signatures import stringify
from repositories import accounts, timing, watches
from repositories.models import App, Repository, Watch
from snapshots.delivery import notices
from snapshots.delivery.webhooks import Answer, Message
from snapshots.models import Delivery, Snapshot
from tests.support.api import Api
from tests.support.notice_cast import events, look
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


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
