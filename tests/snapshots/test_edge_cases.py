"""What repositories may contain and hosts may answer: each has one defined outcome (docs/snapshots.md)."""

import hashlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from docora.demo.bare import Content, executable, submodule, symlink
from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import watches
from repositories.errors import AccessDenied, GitError, InvalidUrl, Moved, RefNotFound
from repositories.git import _process, clones
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.look import take_snapshot
from snapshots.models import FileVersion, Snapshot

pytestmark = pytest.mark.django_db(transaction=True)

Work = Callable[..., None]


@pytest.fixture
def watch(alice_app: App, remote: HostedRepository, work: Work) -> Watch:
    """Alice has the handbook."""
    made = watches.watch(alice_app, remote.url)
    work()
    return made


@pytest.fixture
def look(work: Work) -> Callable[[], Repository]:
    """Take a snapshot of the only repository, deliver it, and return what is known of it now."""

    def take() -> Repository:
        watches.request_snapshot(Repository.objects.get())
        work()
        return Repository.objects.get()

    return take


Look = Callable[[], Repository]


class SmallDisk:
    """A file system of its own for the clones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir()
        self._run("mount", "-t", "tmpfs", "-o", "size=2m", "docora-test", path)

    def grow(self) -> None:
        self._run("mount", "-o", "remount,size=64m", self._path)

    def remove(self) -> None:
        self._run("umount", self._path)

    def _run(self, *command: str | Path) -> None:
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def small_disk(tmp_path: Path, settings: Settings) -> Iterator[SmallDisk]:
    try:
        disk = SmallDisk(tmp_path / "disk")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system may be mounted here")
    settings.REPOS_BASE_PATH = tmp_path / "disk"
    settings.DISK_RESERVE_BYTES = 0
    try:
        yield disk
    finally:
        disk.remove()


def left_out() -> list[dict[str, object]]:
    return list(Snapshot.objects.order_by("sequence").last().left_out)  # type: ignore[union-attr]


class TestBranches:
    def test_the_default_branch_has_any_name(
        self, alice_app: App, alice: Receiver, git_host: GitHost, work: Work
    ) -> None:
        trunk = git_host.create("acme/old", default_branch="trunk")
        trunk.commit({"a.md": "a"})
        made = watches.watch(alice_app, trunk.url)
        work()
        assert alice.files[made.repository.public_id] == {"a.md": b"a"}
        assert Repository.objects.get().branch == "trunk"

    def test_a_changed_default_branch_is_followed(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.point("next", str(remote.tip()))
        remote.commit({"next.md": "next", "logo.png": None}, branch="next")
        remote.set_default_branch("next")
        assert look().branch == "next"
        assert alice.files[watch.repository.public_id] == remote.files()
        assert alice.problems == []

    def test_a_force_push_is_one_more_snapshot(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.commit({"docs/start.md": "second"})
        look()
        remote.rewrite({"docs/start.md": "rewritten", "README.md": None})
        look()
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_a_history_that_shares_nothing_with_the_old_one_is_one_more_snapshot(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.delete_branch("main")
        remote.commit({"fresh.md": "fresh"})
        look()
        assert alice.files[watch.repository.public_id] == {"fresh.md": b"fresh"}

    def test_a_repository_that_loses_its_branch_keeps_what_was_told(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        before = remote.files()
        remote.delete_branch("main")
        assert look().consecutive_failures == 0
        assert alice.files[watch.repository.public_id] == before

    def test_two_refs_of_one_url_share_a_clone_and_survive_its_repair(
        self, watch: Watch, bob_app: App, bob: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
    ) -> None:
        remote.point("next", str(remote.tip()))
        remote.commit({"next.md": "next"}, branch="next")
        other = watches.watch(bob_app, remote.url, ref="next").repository
        work()
        assert bob.files[other.public_id]["next.md"] == b"next"
        assert clones.pins(other.clone_key) == {remote.tip(), remote.tip("next")}
        Repository.objects.filter(pk=watch.repository_id).update(needs_repair=True)
        watches.request_snapshot(watch.repository)
        work()
        assert clones.pins(other.clone_key) == {remote.tip(), remote.tip("next")}

    @pytest.mark.parametrize("ref", ["--upload-pack=touch /tmp/hacked", "gone", "*", "main:refs/heads/evil"])
    def test_a_ref_that_is_not_there_is_said_so(self, remote: HostedRepository, ref: str) -> None:
        with pytest.raises(RefNotFound):
            clones.look(clones.Remote(url=RemoteUrl.parse(remote.url)), ref)

    def test_an_annotated_tag_stands_for_its_commit(
        self, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        remote.git("-c", "user.name=a", "-c", "user.email=a@b", "tag", "-a", "-m", "first", "v1", "main")
        made = watches.watch(alice_app, remote.url, ref="v1")
        work()
        assert Repository.objects.get().commit_sha == remote.tip()
        assert alice.files[made.repository.public_id] == remote.files()


class TestContents:
    @pytest.mark.parametrize(
        "content",
        [
            pytest.param("naïve café".encode("latin-1"), id="Latin-1"),
            pytest.param("naïve café".encode("utf-16"), id="UTF-16"),
            pytest.param(b"one\r\ntwo\r\n", id="CRLF"),
            pytest.param(b"", id="empty"),
            pytest.param(b"\xef\xbb\xbfwith a mark", id="byte order mark"),
            pytest.param(b"a\x00b", id="NUL"),
            pytest.param(
                b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n",
                id="LFS pointer",
            ),
        ],
    )
    def test_arrives_byte_for_byte_with_its_digest(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look, content: bytes
    ) -> None:
        remote.commit({"file": content})
        look()
        assert alice.files[watch.repository.public_id]["file"] == content
        assert bytes(FileVersion.objects.get(file__path="file").sha256) == hashlib.sha256(content).digest()
        assert alice.problems == []

    def test_a_symbolic_link_is_its_target_as_text(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.commit({"passwd": symlink(b"/etc/passwd")})
        look()
        assert alice.files[watch.repository.public_id]["passwd"] == b"/etc/passwd"

    def test_a_submodule_is_left_out_and_said_so(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.commit({"README.md": submodule("1" * 40)})
        look()
        assert "README.md" not in alice.files[watch.repository.public_id]
        assert left_out() == [{"path": "README.md", "reason": "submodule"}]
        remote.commit({"other.md": "other"})
        look()
        assert left_out() == [{"path": "README.md", "reason": "submodule"}]
        remote.commit({"README.md": "a file again"})
        look()
        assert left_out() == []
        assert alice.files[watch.repository.public_id]["README.md"] == b"a file again"

    def test_the_executable_bit_is_noted_and_not_told(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.commit({"run.sh": b"#!/bin/sh\n"})
        look()
        alice.requests.clear()
        remote.commit({"run.sh": executable(b"#!/bin/sh\n")})
        look()
        assert alice.requests == []
        assert FileVersion.objects.get(file__path="run.sh", until=None).mode == "100755"

    def test_names_that_are_not_utf_8_and_names_of_4000_bytes_arrive(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        long = "/".join(["d" * 200] * 19) + "/" + "f" * 180
        changes: dict[bytes, Content] = {b"caf\xe9.md": "latin", long.encode(): "long"}
        remote.commit(changes)
        look()
        assert {"caf\udce9.md", long} < set(alice.files[watch.repository.public_id])
        assert "caf%E9.md" in {request.path for request in alice.requests}
        remote.commit({b"caf\xe9.md": None})
        look()
        assert alice.files[watch.repository.public_id] == remote.files()
        assert alice.problems == []

    def test_a_file_that_becomes_a_directory_and_back(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.commit({"docs": None, "docs/start.md": None})
        remote.commit({"docs": "a file"})
        look()
        assert alice.files[watch.repository.public_id] == remote.files()
        remote.commit({"docs": None})
        remote.commit({"docs/again.md": "a directory"})
        look()
        assert alice.files[watch.repository.public_id] == remote.files()
        assert alice.problems == []

    def test_more_files_than_a_statement_has_room_for(
        self, watch: Watch, remote: HostedRepository, settings: Settings
    ) -> None:
        remote.commit({f"many/{number}": str(number % 7) for number in range(20_000)})
        take_snapshot(watch.repository_id, job_id="test")
        newest = Snapshot.objects.order_by("sequence").last()
        assert newest is not None
        assert (newest.files, newest.created) == (20_003, 20_000)
        assert FileVersion.objects.filter(until=None).count() == 20_003


class TestLimits:
    def test_a_file_that_grows_past_the_limit_is_kept_as_it_was(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look, settings: Settings
    ) -> None:
        settings.MAX_FILE_BYTES = 100
        remote.commit({"logo.png": b"x" * 101, "huge.bin": b"y" * 200})
        look()
        files = alice.files[watch.repository.public_id]
        assert files["logo.png"] == b"\x89PNG\r\n\x00"
        assert "huge.bin" not in files
        assert left_out() == [
            {"path": "huge.bin", "reason": "too-large", "size": 200},
            {"path": "logo.png", "reason": "too-large", "size": 101},
        ]
        assert Watch.objects.get().status == WatchStatus.SYNCED
        remote.commit({"logo.png": b"small again", "huge.bin": None})
        look()
        assert alice.files[watch.repository.public_id] == remote.files()
        assert left_out() == []
        assert alice.problems == []

    def test_an_app_that_comes_later_does_not_get_what_is_too_large(
        self,
        watch: Watch,
        bob_app: App,
        bob: Receiver,
        remote: HostedRepository,
        look: Look,
        work: Work,
        settings: Settings,
    ) -> None:
        settings.MAX_FILE_BYTES = 100
        remote.commit({"logo.png": b"x" * 101})
        look()
        watches.watch(bob_app, remote.url)
        work()
        assert set(bob.files[watch.repository.public_id]) == {"README.md", "docs/start.md"}

    @pytest.mark.parametrize("by", ["a commit", "a new clone"])
    def test_a_raised_limit_brings_back_what_fits_now(
        self,
        watch: Watch,
        alice: Receiver,
        remote: HostedRepository,
        look: Look,
        work: Work,
        settings: Settings,
        by: str,
    ) -> None:
        settings.MAX_FILE_BYTES = 100
        remote.commit({"large.txt": b"x" * 101, "larger.txt": b"x" * 300})
        look()
        assert len(left_out()) == 2
        settings.MAX_FILE_BYTES = 200
        if by == "a commit":
            remote.commit({"another.txt": b"x"})
            look()
        else:
            watches.reclone(watch.repository)
            work()
        assert alice.files[watch.repository.public_id].keys() == remote.files().keys() - {"larger.txt"}
        assert [(item["path"], item["size"]) for item in left_out()] == [("larger.txt", 300)]

    def test_a_large_file_that_is_deleted_is_deleted(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look, settings: Settings
    ) -> None:
        settings.MAX_FILE_BYTES = 100
        remote.commit({"logo.png": b"x" * 101})
        look()
        remote.commit({"logo.png": None})
        look()
        assert "logo.png" not in alice.files[watch.repository.public_id]
        assert left_out() == []

    def test_a_repository_over_the_limit_is_not_fetched_to_the_end(
        self, alice_app: App, git_host: GitHost, settings: Settings, work: Work
    ) -> None:
        settings.MAX_REPOSITORY_BYTES = 100_000
        big = git_host.create("acme/big")
        big.commit({"noise.bin": b"".join(hashlib.sha256(bytes([n % 256, n // 256])).digest() for n in range(9000))})
        watches.watch(alice_app, big.url)
        work()
        repository = Repository.objects.get()
        assert (repository.last_error_code, repository.circuit_open_until is None) == ("too-large", False)
        assert Watch.objects.get().status == WatchStatus.FAILED
        assert not clones.path_of(repository.clone_key).exists()
        settings.MAX_REPOSITORY_BYTES = 1_000_000
        Repository.objects.update(circuit_open_until=repository.created_at)
        watches.request_snapshot(repository)
        work()
        assert Watch.objects.get().status == WatchStatus.SYNCED

    def test_a_repository_that_grows_past_the_limit_of_files_is_kept_as_it_was(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look, settings: Settings
    ) -> None:
        settings.MAX_REPOSITORY_FILES = 4
        before = remote.files()
        remote.commit({"fourth.md": "4", "fifth.md": "5"})
        repository = look()
        assert (repository.last_error_code, repository.sequence) == ("too-large", 1)
        assert alice.files[watch.repository.public_id] == before
        settings.MAX_REPOSITORY_FILES = 5
        Repository.objects.update(circuit_open_until=repository.created_at)
        look()
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_nothing_is_fetched_onto_a_full_disk(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look, settings: Settings
    ) -> None:
        settings.DISK_RESERVE_BYTES = 1 << 60
        remote.commit({"more.md": "more"})
        repository = look()
        assert repository.last_error_code == "disk-full"
        settings.DISK_RESERVE_BYTES = 0
        look()
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_a_disk_that_fills_up_while_git_writes(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look, small_disk: SmallDisk
    ) -> None:
        remote.commit({"noise.bin": hashlib.shake_256(b"noise").digest(4_000_000)})
        repository = look()
        assert repository.last_error_code == "disk-full"
        assert clones.leftovers(older_than=-1) == []
        small_disk.grow()
        look()
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_what_git_says_of_a_full_disk_is_understood(self) -> None:
        said = "error: unable to write file: No space left on device\nfatal: index-pack failed"
        fetching = _process.Command(["fetch"], folder=Path("/"), timeout=1)
        assert _process.error_of(fetching, 128, said).code == "disk-full"


class TestIgnored:
    def test_what_the_rules_hide_is_not_told(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.commit({".docoraignore": "*.png\n/docs/*\n!/docs/keep.md\n", "docs/keep.md": "kept"})
        look()
        assert set(alice.files[watch.repository.public_id]) == {".docoraignore", "README.md", "docs/keep.md"}
        remote.commit({"docs/secret.md": "hidden", "docs/keep.md": "kept, changed"})
        look()
        assert alice.files[watch.repository.public_id]["docs/keep.md"] == b"kept, changed"
        assert "docs/secret.md" not in alice.files[watch.repository.public_id]

    def test_rules_that_go_let_everything_back_in(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, look: Look
    ) -> None:
        remote.commit({".docoraignore": "docs/\n"})
        look()
        remote.commit({".docoraignore": None})
        look()
        assert alice.files[watch.repository.public_id] == remote.files()
        assert alice.problems == []

    @pytest.mark.timeout(20)
    def test_a_hostile_pattern_takes_no_time(self, watch: Watch, remote: HostedRepository, look: Look) -> None:
        remote.commit({".docoraignore": "*a" * 30 + "b\n", "a" * 200: "x"})
        assert look().commit_sha == remote.tip()


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
