"""What hosts may answer: each has one defined outcome (docs/snapshots.md)."""

import hashlib

import pytest
from pytest_django import Settings

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import watches
from repositories.errors import AccessDenied, GitError, InvalidUrl, Moved
from repositories.git import clones
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository, Watch, WatchStatus
from tests.support.worker import Look, Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


class TestHosts:
    @pytest.mark.parametrize("status", [429, 500, 502, 503])
    def test_a_host_in_trouble_counts_against_the_repository(
        self, watch: Watch, git_host: GitHost, look: Look, status: int
    ) -> None:
        with git_host.faults.put(GitFault(status=status)):
            repository = look()
        assert (repository.last_error_code, repository.consecutive_failures) == ("host-unavailable", 1)
        look()
        assert Repository.objects.get().consecutive_failures == 0
        assert Watch.objects.get().status == WatchStatus.SYNCED

    @pytest.mark.parametrize("status", [401, 403, 404])
    def test_a_refusal_counts_against_the_watch(self, watch: Watch, git_host: GitHost, look: Look, status: int) -> None:
        with git_host.faults.put(GitFault(status=status)):
            repository = look()
        watch.refresh_from_db()
        assert (watch.last_error_code, repository.consecutive_failures) == ("no-access", 0)
        look()
        watch.refresh_from_db()
        assert (watch.status, watch.access_denied_at) == (WatchStatus.SYNCED, None)

    def test_a_token_that_may_look_but_not_fetch_takes_the_blame_and_the_next_one_fetches(
        self, alice_app: App, bob_app: App, alice: Receiver, bob: Receiver, git_host: GitHost, work: Work
    ) -> None:
        private = git_host.create("acme/secret", private_to={"alice-token", "bob-token"})
        private.commit({"plan.md": "one"})
        watches.watch(alice_app, private.url, token="alice-token")
        watches.watch(bob_app, private.url, token="bob-token")
        with git_host.faults.put(GitFault(kinds={"fetch"}, status=403, times=1)):
            work()
        fetched_with = [request.token for request in git_host.requests if request.kind == "fetch"]
        assert sorted(fetched_with) == ["alice-token", "bob-token"]
        assert Repository.objects.get().commit_sha == private.tip()
        assert Repository.objects.get().consecutive_failures == 0

    def test_a_host_that_hangs_in_the_middle_of_a_pack_is_given_up(
        self, watch: Watch, alice: Receiver, git_host: GitHost, remote: HostedRepository, look: Look, settings: Settings
    ) -> None:
        settings.GIT_STALL_TIMEOUT = 1
        remote.commit({"noise.bin": hashlib.shake_256(b"noise").digest(100_000)})
        with git_host.faults.put(GitFault(hang_after=20_000)):
            assert look().last_error_code == "host-unavailable"
        look()
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_a_connection_that_breaks_in_the_middle_of_a_pack_leaves_nothing_half(
        self, alice_app: App, alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
    ) -> None:
        remote.commit({"noise.bin": hashlib.shake_256(b"noise").digest(100_000)})
        with git_host.faults.put(GitFault(drop_after=20_000)):
            made = watches.watch(alice_app, remote.url)
            work()
            assert not clones.path_of(made.repository.clone_key).exists()
            assert Repository.objects.get().last_error_code == "host-unavailable"
        work(also_later_ones=True)
        assert alice.files[made.repository.public_id] == remote.files()

    def test_a_renamed_repository_goes_on(
        self, watch: Watch, alice: Receiver, git_host: GitHost, remote: HostedRepository, look: Look
    ) -> None:
        renamed = git_host.create("acme/manual")
        renamed.commit({"README.md": "# Manual\n"})
        with git_host.faults.put(GitFault(repository=remote, redirect_to=renamed)):
            repository = look()
        assert (repository.commit_sha, repository.url) == (renamed.tip(), remote.url)
        assert alice.files[watch.repository.public_id] == {"README.md": b"# Manual\n"}

    def test_a_renamed_private_repository_is_read_with_the_same_token(
        self, alice_app: App, alice: Receiver, git_host: GitHost, work: Work
    ) -> None:
        old = git_host.create("acme/secret", private_to={"alice-token"})
        renamed = git_host.create("acme/hidden", private_to={"alice-token"})
        renamed.commit({"plan.md": "plan"})
        git_host.faults.put(GitFault(repository=old, redirect_to=renamed))
        made = watches.watch(alice_app, old.url, token="alice-token")
        work()
        assert alice.files[made.repository.public_id] == {"plan.md": b"plan"}

    def test_a_redirect_to_another_host_is_followed_without_the_token_or_not_at_all(
        self, git_host: GitHost, tmp_path_factory: pytest.TempPathFactory, settings: Settings
    ) -> None:
        with GitHost(tmp_path_factory.mktemp("elsewhere")) as elsewhere:
            there = elsewhere.create("acme/handbook")
            there.commit({"a": "b"})
            here = git_host.create("acme/handbook", private_to={"alice-token"})
            git_host.faults.put(GitFault(repository=here, redirect_to=there))
            remote = clones.Remote(url=RemoteUrl.parse(here.url), token="alice-token")
            with pytest.raises(Moved, match="not allowed here"):
                clones.look(remote, "")
            assert elsewhere.requests == []
            settings.GIT_HOSTS = (git_host.address, elsewhere.address)
            tip = clones.look(remote, "")
            assert tip
            assert (tip.sha, str(tip.url)) == (there.tip(), there.url)
            assert {request.token for request in elsewhere.requests} == {""}

    def test_a_second_redirect_is_not_followed(self, git_host: GitHost, remote: HostedRepository) -> None:
        other = git_host.create("acme/second")
        git_host.faults.put(GitFault(repository=remote, redirect_to=other))
        git_host.faults.put(GitFault(repository=other, redirect_to=remote))
        with pytest.raises(Moved):
            clones.look(clones.Remote(url=RemoteUrl.parse(remote.url)), "")

    @pytest.mark.parametrize(
        "url",
        [
            "https://user:secret@github.com/a/b",
            "ext::sh -c touch% /tmp/hacked",
            "file:///etc",
            "ssh://git@github.com/a/b",
            "--upload-pack=touch /tmp/hacked",
            "git@github.com:a/b",
        ],
    )
    def test_a_url_that_is_no_plain_web_address_is_refused(self, url: str) -> None:
        with pytest.raises(InvalidUrl) as refused:
            RemoteUrl.parse(url)
        assert "secret" not in str(refused.value)

    def test_a_host_that_is_no_longer_allowed_stops_the_looks_and_nothing_else(
        self, watch: Watch, look: Look, settings: Settings
    ) -> None:
        allowed, settings.GIT_HOSTS = settings.GIT_HOSTS, ("github.com",)
        repository = look()
        assert (repository.last_error_code, repository.circuit_open_until is None) == ("invalid-url", False)
        settings.GIT_HOSTS = allowed
        Repository.objects.update(circuit_open_until=repository.created_at)
        assert look().consecutive_failures == 0


def test_the_error_of_a_wrong_token_does_not_carry_it(git_host: GitHost) -> None:
    private = git_host.create("acme/secret", private_to={"other"})
    remote = clones.Remote(url=RemoteUrl.parse(private.url), token="very-secret-token")
    with pytest.raises(AccessDenied) as refused:
        clones.look(remote, "")
    assert "very-secret-token" not in str(refused.value)
    assert isinstance(refused.value, GitError)
