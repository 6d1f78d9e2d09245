"""Whose token is refused, and what becomes of it when it is accepted again."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver
from repositories import access, accounts, circuit, messages, watches
from repositories.base import queue
from repositories.errors import AccessDenied, HostUnavailable
from repositories.git import clones
from repositories.git.clones import Remote, Tip
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots import schedule
from snapshots.delivery import completion, notices, redelivery, tell
from snapshots.look import take_snapshot
from snapshots.models import Completion, Snapshot
from tests.support.beside import beside
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


def test_a_delivery_asks_for_a_new_proof_when_the_last_one_is_too_old(
    watch: Watch,
    alice: Receiver,
    bob_app: App,
    git_host: GitHost,
    secret: HostedRepository,
    work: Work,
    settings: Settings,
) -> None:
    """Bob's token goes on reading the repository."""
    watches.watch(bob_app, secret.url, token="bob")
    work()
    before = alice.files_of(watch.repository.public_id)
    git_host.revoke(secret, "alice")
    secret.commit({"a.md": "2"})
    too_old = timezone.now() - timedelta(seconds=settings.ACCESS_PROOF_AGE + 1)
    Watch.objects.filter(pk=watch.pk).update(access_proven_at=too_old)
    look(watch, work)
    assert alice.files_of(watch.repository.public_id) == before
    assert watch.access_denied_at


def test_a_refusal_ends_a_proof_that_is_still_young(watch: Watch, git_host: GitHost, secret: HostedRepository) -> None:
    git_host.revoke(secret, "alice")
    now = timezone.now()
    Watch.objects.update(access_proven_at=now - timedelta(seconds=1), access_denied_at=now)
    with pytest.raises(AccessDenied):
        access.prove(Watch.objects.get(pk=watch.pk))


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


def test_a_refused_token_is_blamed_alone_although_it_is_asked_first(
    watch: Watch, bob_app: App, bob: Receiver, git_host: GitHost, secret: HostedRepository, work: Work
) -> None:
    watches.watch(bob_app, secret.url, token="bob")
    work()
    git_host.revoke(secret, "alice")
    Watch.objects.filter(pk=watch.pk).update(access_proven_at=timezone.now() + timedelta(minutes=1))
    secret.commit({"a.md": "2"})
    look(watch, work)
    assert watch.access_denied_at
    other = Watch.objects.get(app=bob_app)
    assert (other.access_denied_at, other.synced_commit) == (None, secret.tip())
    assert {request.event for request in bob.requests} == {"create", "update"}


def test_nobody_else_is_blamed_for_a_refused_token_even_for_a_moment(
    watch: Watch, bob_app: App, git_host: GitHost, secret: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches.watch(bob_app, secret.url, token="bob")
    work()
    git_host.revoke(secret, "alice")
    Watch.objects.filter(pk=watch.pk).update(access_proven_at=timezone.now() + timedelta(minutes=1))
    blamed: list[int] = []
    monkeypatch.setattr(messages, "announce_refusal", blamed.append)
    take_snapshot(watch.repository_id, job_id="look")
    assert blamed == [watch.pk]


def test_a_run_under_way_stops_when_its_proof_is_forgotten(
    alice_app: App, alice: Receiver, git_host: GitHost, secret: HostedRepository, work: Work
) -> None:
    App.objects.update(max_in_flight=1)
    secret.commit({f"{number}.md": "x" for number in range(5)})
    watch = watches.watch(alice_app, secret.url, token="alice")

    def revoke(_: ReceivedRequest) -> None:
        alice.on_request = lambda _: None
        git_host.revoke(secret, "alice")
        beside(lambda: access.forget_proofs(Watch.objects.all()))

    alice.on_request = revoke
    work()
    assert [request.event for request in alice.requests] == ["create", "sync_failed"]
    watch.refresh_from_db()
    assert watch.access_denied_at


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


def test_a_refusal_counts_now_although_an_acceptance_from_before_it_is_noted_first(
    watch: Watch, git_host: GitHost, secret: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    git_host.revoke(secret, "alice")
    Watch.objects.update(access_proven_at=None)
    ask = clones.look

    def note_and_ask(remote: Remote, ref: str) -> Tip | None:
        """Another process was answered before the token was revoked, and writes that down now."""
        Watch.objects.update(access_proven_at=timezone.now())
        return ask(remote, ref)

    monkeypatch.setattr(clones, "look", note_and_ask)
    with pytest.raises(AccessDenied):
        access.prove(Watch.objects.get(pk=watch.pk))


@pytest.mark.parametrize("branch", ["there", "gone"])
def test_a_proof_is_as_old_as_the_question(watch: Watch, monkeypatch: pytest.MonkeyPatch, branch: str) -> None:
    Watch.objects.update(access_proven_at=None)
    Repository.objects.update(ref="" if branch == "there" else "gone")
    look_at_once, answered = clones.look, []

    def look_slowly(remote: Remote, ref: str) -> Tip | None:
        try:
            return look_at_once(remote, ref)
        finally:
            answered.append(timezone.now())

    monkeypatch.setattr(clones, "look", look_slowly)
    access.prove(Watch.objects.get(pk=watch.pk))
    watch.refresh_from_db()
    assert watch.access_proven_at
    assert watch.access_proven_at < answered[0]


def test_an_acceptance_does_not_put_an_older_proof_over_a_newer_one(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    Watch.objects.update(access_proven_at=None)
    look_at_once, newer = clones.look, timezone.now() + timedelta(minutes=1)

    def look_slowly(remote: Remote, ref: str) -> Tip | None:
        """Before the answer is here, another process asks too, and is answered."""
        Watch.objects.update(access_proven_at=newer)
        return look_at_once(remote, ref)

    monkeypatch.setattr(clones, "look", look_slowly)
    access.prove(Watch.objects.get(pk=watch.pk))
    watch.refresh_from_db()
    assert watch.access_proven_at == newer


class TestRefused:
    """An app whose token is refused is told that, and nothing else."""

    @pytest.fixture
    def watch(self, watch: Watch, bob_app: App, git_host: GitHost, secret: HostedRepository, work: Work) -> Watch:
        """Alice's, since her token is refused. Bob's is accepted, and brought a newer commit."""
        accounts.choose_events(watch.app, ["sync_complete", "sync_recovered"])
        watches.watch(bob_app, secret.url, token="bob")
        work()
        git_host.revoke(secret, "alice")
        Watch.objects.update(access_proven_at=None)
        secret.commit({"a.md": "2"})
        look(watch, work)
        assert watch.access_denied_at
        assert Repository.objects.get().sequence == 2
        return watch

    @pytest.fixture(autouse=True)
    def nothing_is_sent(self, watch: Watch, alice: Receiver, work: Work) -> Iterator[None]:
        alice.requests.clear()
        yield
        work()
        assert alice.requests == []

    def test_no_delivery_of_it_is_requested(self, watch: Watch) -> None:
        schedule.tick()
        tell._rerun_after_current(watch)
        assert not queue.is_alive(messages.delivery_job(watch.pk))

    def test_no_completion_of_it_is_sent(self, watch: Watch, secret: HostedRepository) -> None:
        first = Snapshot.objects.earliest("sequence")
        has = {"files": watch.files, "digest": watch.digest, "created": 1, "updated": 0, "deleted": 0, "parked": 0}
        Completion.objects.create(
            watch=watch, app=watch.app, sequence=1, commit_sha=first.commit_sha, left_out=0, noticed_at=first.taken_at,
            pending=True, **has,
        )  # fmt: skip
        assert completion.request_lost(10) == 0
        assert completion.send(watch.pk, job_id="test", lane=queue.DELIVERIES) is None

    def test_it_is_not_told_of_an_outage_or_its_end(self, watch: Watch) -> None:
        Repository.objects.update(circuit_open_until=timezone.now() + timedelta(hours=1))
        notices.announce_failure(watch.repository_id)
        Repository.objects.update(circuit_open_until=None)
        notices.announce_recovery(watch.repository_id)
        assert not any(queue.is_alive(f"notice-{kind}-{watch.pk}") for kind in ("failure", "recovery"))

    def test_it_keeps_its_reason_when_the_host_fails(self, watch: Watch) -> None:
        circuit.count_failure(watch.repository, HostUnavailable("The host is away."))
        refused, other = Watch.objects.get(pk=watch.pk), Watch.objects.exclude(pk=watch.pk).get()
        assert (refused.status, refused.last_error_code) == (WatchStatus.FAILED, "no-access")
        assert other.last_error_code == "host-unavailable"
