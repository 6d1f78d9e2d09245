"""Whose token is refused, and what becomes of it when it is accepted again."""

import pytest
from django.utils import timezone

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import access, watches
from repositories.errors import AccessDenied
from repositories.git import clones
from repositories.git.clones import Remote, Tip
from repositories.models import App, Watch, WatchStatus
from snapshots.delivery import redelivery, tell
from snapshots.look import take_snapshot
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def secret(git_host: GitHost) -> HostedRepository:
    repository = git_host.create("acme/secret", private_to={"alice", "newer", "bob"})
    repository.commit({"a.md": "1"})
    return repository


@pytest.fixture
def watch(alice_app: App, secret: HostedRepository, work: Work) -> Watch:
    watch = watches.watch(alice_app, secret.url, token="alice")
    work()
    return watch


def look(watch: Watch, work: Work) -> None:
    take_snapshot(watch.repository_id, job_id="look")
    work()
    watch.refresh_from_db()


def test_who_tries_a_refused_watch_again_does_not_take_the_refusal_away(
    watch: Watch, alice: Receiver, git_host: GitHost, secret: HostedRepository, work: Work
) -> None:
    git_host.revoke(secret, "alice")
    look(watch, work)
    redelivery.retry_now(watch)
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.FAILED
    assert watch.access_denied_at
    look(watch, work)
    assert [request.event for request in alice.requests].count("sync_failed") == 1


def test_a_token_that_is_accepted_again_is_noticed_although_another_one_reads_the_repository(
    watch: Watch, bob_app: App, secret: HostedRepository, work: Work
) -> None:
    watches.watch(bob_app, secret.url, token="bob")
    work()
    Watch.objects.filter(pk=watch.pk).update(
        status=WatchStatus.FAILED, access_denied_at=watch.created_at, last_error_code="no-access", last_error="refused"
    )
    look(watch, work)
    assert (watch.status, watch.access_denied_at, watch.last_error) == (WatchStatus.SYNCED, None, "")


def test_a_refusal_of_the_token_before_does_not_count(
    watch: Watch, git_host: GitHost, secret: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is changed while the host is being asked about the old one."""
    secret.commit({"a.md": "2"})
    take_snapshot(watch.repository_id, job_id="look")
    git_host.revoke(secret, "alice")
    Watch.objects.update(access_proven_at=None)
    ask = clones.look

    def ask_and_change(remote: Remote, ref: str) -> Tip | None:
        monkeypatch.setattr(clones, "look", ask)
        try:
            return ask(remote, ref)
        finally:
            watches.change_token(watch.app, watch.repository.public_id, "newer")

    monkeypatch.setattr(clones, "look", ask_and_change)
    tell.deliver(watch.pk, job_id="deliver")
    watch.refresh_from_db()
    assert watch.access_denied_at is None
    work()
    watch.refresh_from_db()
    assert (watch.status, watch.synced_commit) == (WatchStatus.SYNCED, secret.tip())


def test_a_token_that_may_look_but_not_fetch_is_refused(
    watch: Watch, git_host: GitHost, secret: HostedRepository, work: Work
) -> None:
    Watch.objects.update(access_proven_at=None)
    secret.commit({"a.md": "2"})
    with git_host.faults.put(GitFault(kinds={"fetch"}, status=403)):
        look(watch, work)
    assert (watch.status, watch.last_error_code) == (WatchStatus.FAILED, "no-access")


def test_an_acceptance_from_before_a_refusal_does_not_undo_it(
    watch: Watch, git_host: GitHost, secret: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    Watch.objects.update(access_proven_at=None)
    look_at_once = clones.look

    def look_slowly(remote: Remote, ref: str) -> Tip | None:
        """Accepted; but before the answer is here, the token is revoked, and another process learns of it."""
        tip = look_at_once(remote, ref)
        git_host.revoke(secret, "alice")
        monkeypatch.setattr(clones, "look", look_at_once)
        with pytest.raises(AccessDenied):
            access.prove(Watch.objects.get(pk=watch.pk))
        return tip

    monkeypatch.setattr(clones, "look", look_slowly)
    with pytest.raises(AccessDenied):
        access.prove(Watch.objects.get(pk=watch.pk))
    watch.refresh_from_db()
    assert watch.access_denied_at
    assert watch.access_proven_at is None


def test_a_proof_is_as_old_as_the_question(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    Watch.objects.update(access_proven_at=None)
    look_at_once, answered = clones.look, []

    def look_slowly(remote: Remote, ref: str) -> Tip | None:
        tip = look_at_once(remote, ref)
        answered.append(timezone.now())
        return tip

    monkeypatch.setattr(clones, "look", look_slowly)
    access.prove(Watch.objects.get(pk=watch.pk))
    watch.refresh_from_db()
    assert watch.access_proven_at
    assert watch.access_proven_at < answered[0]
