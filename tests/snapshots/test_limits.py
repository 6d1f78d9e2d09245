"""Files, repositories and disks that are too large or too full: each has one defined outcome (docs/snapshots.md)."""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import watches
from repositories.git import _process, clones
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import Snapshot
from tests.support.worker import Look, Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


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
