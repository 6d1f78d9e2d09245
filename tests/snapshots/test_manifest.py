"""The manifest: an overtaken worker never writes over what a newer one has written."""

from collections.abc import Callable

import pytest

from docora.demo.githost import HostedRepository
from repositories import watches
from repositories.git import clones
from repositories.models import App, Repository
from repositories.repo_lock import repo_lock
from snapshots import manifest
from snapshots.models import File, FileVersion, Snapshot
from tests.support.beside import beside

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def repository(alice_app: App, remote: HostedRepository, work: Callable[..., None]) -> Repository:
    watches.watch(alice_app, remote.url)
    work()
    return Repository.objects.get()


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
