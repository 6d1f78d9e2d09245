"""What repositories may contain: each has one defined outcome (docs/snapshots.md)."""

import hashlib

import pytest
from pytest_django import Settings

from docora.demo.bare import Content, executable, submodule, symlink
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import watches
from repositories.errors import RefNotFound
from repositories.git import clones
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository, Watch
from snapshots.look import take_snapshot
from snapshots.models import FileVersion, Snapshot
from tests.support.worker import Look, Work

pytestmark = pytest.mark.django_db(transaction=True)


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
    @pytest.mark.any_database
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

    @pytest.mark.any_database
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

    @pytest.mark.any_database
    @pytest.mark.timeout(20)
    def test_a_hostile_pattern_takes_no_time(self, watch: Watch, remote: HostedRepository, look: Look) -> None:
        remote.commit({".docoraignore": "*a" * 30 + "b\n", "a" * 200: "x"})
        assert look().commit_sha == remote.tip()
