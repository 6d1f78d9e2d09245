"""The manifest: an overtaken worker never writes over what a newer one has written."""

import tracemalloc
from collections.abc import Callable, Iterable, Iterator

import pytest

from docora.demo.bare import submodule
from docora.demo.githost import HostedRepository
from repositories.git import clones
from repositories.git.blobs import Blobs, Digest
from repositories.models import Repository, Watch
from repositories.repo_lock import repo_lock
from snapshots import manifest, packed
from snapshots.models import File, FileVersion, Snapshot
from tests.support.beside import beside

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def repository(watch: Watch) -> Repository:
    return Repository.objects.get(pk=watch.repository_id)


def fetch(repository: Repository) -> tuple[str, int]:
    """As a worker does: the commit that is pinned now, and the fence under which it was."""
    remote = clones.Remote(url=repository.remote)
    with repo_lock(repository.clone_key, job_id="a worker") as held:
        tip = clones.look(remote, "")
        assert tip
        clones.refresh(repository.clone_key, remote, tip, held=held)
    return tip.sha, held.fence


def written() -> tuple[str, int]:
    row = Repository.objects.get()
    return row.commit_sha, row.fence


def test_what_was_fetched_before_the_newest_snapshot_is_dropped(
    repository: Repository, remote: HostedRepository
) -> None:
    remote.commit({"README.md": "older"})
    older, small_fence = fetch(repository)
    remote.commit({"README.md": "newer"})
    newer, large_fence = fetch(repository)
    assert manifest.write(repository.pk, newer, branch="main", fence=large_fence)
    assert not manifest.write(repository.pk, older, branch="main", fence=small_fence)
    assert written() == (newer, large_fence)
    assert not Snapshot.objects.filter(commit_sha=older).exists()


def test_a_worker_that_is_overtaken_while_it_reads_writes_nothing(
    repository: Repository, remote: HostedRepository
) -> None:
    remote.commit({"README.md": "older"})
    older, small_fence = fetch(repository)
    remote.commit({"README.md": "newer"})
    newer, large_fence = fetch(repository)

    def overtake(done: int, total: int) -> None:
        if written()[0] != newer:
            assert manifest.write(repository.pk, newer, branch="main", fence=large_fence)

    assert not manifest.write(repository.pk, older, branch="main", fence=small_fence, on_progress=overtake)
    assert written() == (newer, large_fence)
    assert not Snapshot.objects.filter(commit_sha=older).exists()


def test_the_same_fetch_is_not_written_twice(repository: Repository, remote: HostedRepository) -> None:
    remote.commit({"README.md": "newer"})
    commit, fence = fetch(repository)
    assert manifest.write(repository.pk, commit, branch="main", fence=fence)
    assert not manifest.write(repository.pk, commit, branch="main", fence=fence)


def everything_written() -> list[object]:
    return [list(model._default_manager.order_by("pk").values()) for model in (Repository, Snapshot, File, FileVersion)]


def test_nobody_sees_half_of_a_snapshot_and_one_that_fails_leaves_nothing(
    repository: Repository, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit({"README.md": "newer", "logo.png": None, "more.md": "more"})
    commit, fence = fetch(repository)
    before = everything_written()
    seen: list[list[object]] = []

    def look_and_fail(*_: object) -> None:
        """When the files are written, and the snapshot is not."""
        beside(lambda: seen.append(everything_written()))
        raise ZeroDivisionError

    monkeypatch.setattr(manifest, "_count", look_and_fail)
    with pytest.raises(ZeroDivisionError):
        manifest.write(repository.pk, commit, branch="main", fence=fence)
    assert seen == [before]
    assert everything_written() == before


def test_a_branch_that_was_seen_before_the_newest_snapshot_is_not_noted(
    repository: Repository, remote: HostedRepository
) -> None:
    remote.commit({"README.md": "newer"})
    commit, fence = fetch(repository)
    assert manifest.write(repository.pk, commit, branch="trunk", fence=fence)
    manifest.note_branch(repository, "older")
    assert Repository.objects.get().branch == "trunk"
    assert not Snapshot.objects.filter(branch="older").exists()


def test_a_manifest_is_written_in_order_however_many_batches_it_takes(
    repository: Repository, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_BATCH", 3)
    asked: list[str] = []

    def digests(self: Blobs, blobs: Iterable[str], *, largest: int) -> Iterator[tuple[str, Digest]]:
        found = list(read(self, blobs, largest=largest))
        asked.extend(blob for blob, _ in found)
        return iter(found)

    read = Blobs.digests
    monkeypatch.setattr(Blobs, "digests", digests)
    remote.commit({f"{n % 4}/{n}.md": "the same" if n % 5 == 0 else f"text {n}" for n in range(30)})
    commit, fence = fetch(repository)
    assert manifest.write(repository.pk, commit, branch="main", fence=fence)
    written = FileVersion.objects.filter(repository=repository, since=2)
    paths = list(written.order_by("file_id").values_list("file__path", flat=True))
    assert paths == sorted(f"{n % 4}/{n}.md" for n in range(30))
    assert len(asked) == len(set(asked)) == 25
    assert written.get(file__path="1/5.md").sha256 == written.get(file__path="0/20.md").sha256
    row = Snapshot.objects.get(repository=repository, sequence=2)
    assert (row.created, row.updated, row.deleted) == (30, 0, 0)


def test_a_full_comparison_finds_what_is_gone_in_any_batch(
    repository: Repository, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "_BATCH", 3)
    remote.commit({f"{n}.md": f"text {n}" for n in range(20)})
    commit, fence = fetch(repository)
    assert manifest.write(repository.pk, commit, branch="main", fence=fence)
    # Other rules make the comparison a full one.
    remote.commit({".docoraignore": "1?.md\n", "3.md": None, "4.md": "other", "new.md": "new"})
    commit, fence = fetch(repository)
    assert manifest.write(repository.pk, commit, branch="main", fence=fence)
    row = Snapshot.objects.get(repository=repository, sequence=3)
    assert (row.created, row.updated, row.deleted) == (2, 1, 11)
    assert row.files == manifest.contents_at(repository.pk, 3).count()
    current = set(manifest.at(repository.pk, 3).values_list("file__path", flat=True))
    assert {"new.md", "4.md", ".docoraignore"} <= current
    assert not {"3.md", "10.md", "19.md"} & current


@pytest.mark.parametrize("in_full", [False, True], ids=["by the trees", "compared in full"])
def test_a_submodule_that_is_gone_is_not_left_out_any_more(
    repository: Repository, remote: HostedRepository, in_full: bool
) -> None:
    for number, content in enumerate((submodule("1" * 40), None)):
        remote.commit({"library": content, "kept": submodule("2" * 40)})
        if in_full:
            remote.commit({".docoraignore": f"*.{number}\n"})
        commit, fence = fetch(repository)
        assert manifest.write(repository.pk, commit, branch="main", fence=fence)
    left_out = Snapshot.objects.filter(repository=repository).order_by("sequence").values_list("left_out", flat=True)
    assert [[item["path"] for item in items] for items in left_out] == [
        [],
        ["kept", "library"],
        ["kept"],
    ]


def test_packed_changes_take_less_than_half_of_what_objects_take() -> None:
    def changes() -> Iterator[manifest._Change]:
        for n in range(20_000):
            path, sha256 = b"folder-%d/file-%d.md" % (n % 99, n), n.to_bytes(32)
            yield manifest._Change(path, "100644", f"{n:040x}", n, n, n, sha256)

    as_objects = _memory_of(lambda: list(changes()))
    assert _memory_of(lambda: packed.Packed(manifest._Change._make, changes())) < as_objects / 2


def _memory_of(make: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        kept = make()
        del kept
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
