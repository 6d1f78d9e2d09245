"""Clones: what killed gits leave behind, what damage looks like, what may be thrown away."""

import hashlib
import os
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from docora.demo.githost import GitFault, GitHost, HostedRepository
from repositories.errors import CloneDamaged, GitError, LockLostError, LockTimeoutError
from repositories.git import _commands, clones, trees
from repositories.git.blobs import Blobs, Digest
from repositories.git.trees import Entry
from repositories.git.urls import RemoteUrl
from repositories.repo_lock import HeldLock, force_release, lock_status, repo_lock
from repositories.repo_lock.slots import fetch_slot

Fetch = Callable[..., str]


@pytest.fixture
def key(remote: HostedRepository) -> str:
    return RemoteUrl.parse(remote.url).clone_key


@pytest.fixture
def held(key: str) -> Iterator[HeldLock]:
    with repo_lock(key, job_id="test") as held:
        yield held


@pytest.fixture
def fetch(remote: HostedRepository, key: str, held: HeldLock) -> Fetch:
    def refresh(**options: object) -> str:
        source = clones.Remote(url=RemoteUrl.parse(remote.url))
        tip = clones.look(source, "")
        assert tip
        clones.refresh(key, source, tip, held=held, **options)  # type: ignore[arg-type]
        return tip.sha

    return refresh


def contents(key: str, commit: str) -> dict[bytes, bytes]:
    with clones.open_blobs(key) as blobs:
        entries = list(trees.files(blobs, commit))
        found = [b"".join(pieces) for pieces in blobs.contents(entry.blob for entry in entries)]
    return {entry.path: content for entry, content in zip(entries, found, strict=True)}


def read(blobs: Blobs, entry: Entry) -> bytes:
    [content] = [b"".join(pieces) for pieces in blobs.contents([entry.blob])]
    return content


@pytest.mark.parametrize(
    "left", ["shallow.lock", "packed-refs.lock", "refs/docora/pin/x.lock", "objects/pack/tmp_pack_x", "config.lock"]
)
def test_what_a_killed_git_left_does_not_stop_the_next_fetch(
    fetch: Fetch, key: str, remote: HostedRepository, left: str
) -> None:
    fetch()
    path = clones.path_of(key) / left
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    remote.commit({"more.md": "more"})
    assert fetch() == remote.tip()
    assert not path.exists()


@pytest.mark.parametrize("by", ["fetch", "pack"])
def test_what_an_orphaned_git_still_uses_is_not_swept_away(
    fetch: Fetch, key: str, held: HeldLock, settings: Settings, by: str
) -> None:
    fetch()
    settings.REPO_LOCK_WAIT = 0
    in_use = clones.path_of(key) / "shallow.lock"
    in_use.touch()
    with held.inherit(), pytest.raises(LockTimeoutError):
        fetch() if by == "fetch" else clones.pack(key, held=held)
    assert in_use.exists()


def test_the_draft_of_a_killed_clone_goes_with_the_next_one(fetch: Fetch, key: str, settings: Settings) -> None:
    draft = clones._aside("drafts", clones._draft_prefix(key))
    draft.mkdir()
    others = clones._aside("drafts", clones._draft_prefix("somebody/else"))
    others.mkdir()
    fetch()
    assert list((settings.REPOS_BASE_PATH / ".drafts").iterdir()) == [others]


def test_a_clone_that_cannot_be_made_leaves_no_draft(fetch: Fetch, git_host: GitHost, settings: Settings) -> None:
    with git_host.faults.put(GitFault(kinds={"fetch"}, status=500)), pytest.raises(GitError):
        fetch()
    assert list((settings.REPOS_BASE_PATH / ".drafts").iterdir()) == []
    assert clones.keys_on_disk() == []


def _zero(path: Path) -> int:
    path.chmod(0o600)
    return path.write_bytes(b"\0" * path.stat().st_size)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda clone: [_zero(pack) for pack in clone.glob("objects/pack/*.pack")], id="zeroed pack"),
        pytest.param(lambda clone: [pack.unlink() for pack in clone.glob("objects/pack/*")], id="no objects"),
        pytest.param(lambda clone: (clone / "HEAD").unlink(), id="no HEAD"),
        pytest.param(lambda clone: (clone / "config").write_text("[core"), id="broken config"),
        pytest.param(lambda clone: (clone / "config").write_bytes(b"\xff\xfe\0"), id="binary config"),
        pytest.param(lambda clone: (clone / "shallow").write_text("nonsense\n"), id="broken shallow"),
    ],
)
def test_a_damaged_clone_is_made_anew_beside_and_swapped(
    fetch: Fetch, key: str, remote: HostedRepository, damage: Callable[[Path], object]
) -> None:
    fetch()
    damage(clones.path_of(key))
    remote.commit({"more.md": "more"})
    try:
        commit = fetch()
        found = contents(key, commit)
    except CloneDamaged:  # noticed at reading: the next look makes it anew
        commit = fetch(anew=True)
        found = contents(key, commit)
    assert commit == remote.tip()
    assert {path.decode(): content for path, content in found.items()} == remote.files()


def test_a_repository_that_changes_its_hash_is_cloned_anew(fetch: Fetch, key: str, remote: HostedRepository) -> None:
    fetch()
    shutil.rmtree(remote.path)
    remote.path.mkdir()
    remote.git("init", "--quiet", "--bare", "--initial-branch=main", "--object-format=sha256")
    remote.commit({"README.md": "new"})
    commit = fetch()
    assert len(commit) == 64
    assert contents(key, commit) == {b"README.md": b"new"}
    _commands.read(clones.path_of(key), "fsck", "--strict")
    remote.commit({"more.md": "more"})
    assert contents(key, fetch()) == {b"README.md": b"new", b"more.md": b"more"}


def test_the_default_branch_is_that_of_the_remote_and_not_of_what_it_has_fetched_itself(
    remote: HostedRepository,
) -> None:
    remote.git("update-ref", "refs/remotes/origin/trunk", remote.tip() or "")
    remote.git("symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/trunk")
    tip = clones.look(clones.Remote(url=RemoteUrl.parse(remote.url)), "")
    assert tip
    assert (tip.sha, tip.source) == (remote.tip(), "refs/heads/main")


def test_what_was_looked_at_is_fetched_although_the_remote_has_moved_on(
    key: str, remote: HostedRepository, held: HeldLock
) -> None:
    source = clones.Remote(url=RemoteUrl.parse(remote.url))
    tip = clones.look(source, "")
    assert tip
    remote.commit({"README.md": "later"})
    clones.refresh(key, source, tip, held=held)
    assert clones.pins(key) == {tip.sha}
    assert contents(key, tip.sha)[b"README.md"] == b"# Handbook\n"


def test_a_tag_that_does_not_stand_for_the_commit_that_the_host_named_is_refused(
    remote: HostedRepository, key: str, held: HeldLock
) -> None:
    """Its files would be delivered under the name of another commit."""
    other = remote.tip()
    remote.commit({"README.md": "tagged"})
    remote.git("-c", "user.name=a", "-c", "user.email=a@b", "tag", "-a", "-m", "first", "v1", "main")
    source = clones.Remote(url=RemoteUrl.parse(remote.url))
    tip = clones.look(source, "v1")
    assert tip
    assert other
    with pytest.raises(CloneDamaged, match="does not stand for the commit"):
        clones.refresh(key, source, replace(tip, sha=other), held=held)
    assert clones.keys_on_disk() == []


def test_an_object_that_is_missing_means_damage_and_never_a_deleted_file(fetch: Fetch, key: str) -> None:
    fetch()
    with clones.open_blobs(key) as blobs, pytest.raises(CloneDamaged):
        list(blobs.digests(["1" * 40], largest=10))
    with clones.open_blobs(key) as blobs, pytest.raises(CloneDamaged):
        list(blobs.sizes(["1" * 40]))
    with clones.open_blobs(key) as blobs, pytest.raises(CloneDamaged):
        list(blobs.contents(["1" * 40]))


def test_a_content_that_is_cut_off_means_damage() -> None:
    blobs = Blobs(BytesIO(), BytesIO(b"1234 blob 10\nshort"))
    with pytest.raises(CloneDamaged):
        list(next(blobs.contents(["1234"])))


def test_no_answer_means_damage_and_not_that_nothing_is_there() -> None:
    with pytest.raises(CloneDamaged):
        Blobs(BytesIO(), BytesIO()).has("main")
    with pytest.raises(CloneDamaged):
        Blobs(BytesIO(), BytesIO()).read_small("main:README.md", 100)


def test_a_content_that_is_too_large_is_measured_and_not_read(fetch: Fetch, key: str) -> None:
    commit = fetch()
    with clones.open_blobs(key) as blobs:
        entries = {entry.path: entry.blob for entry in trees.files(blobs, commit)}
        sizes = dict(blobs.sizes(entries.values()))
        digests = dict(blobs.digests(entries.values(), largest=11))
    assert digests[entries[b"README.md"]] == Digest(hashlib.sha256(b"# Handbook\n").digest(), 11)
    assert {blob for blob, digest in digests.items() if not digest.sha256} == {b for b, n in sizes.items() if n > 11}
    assert {blob: digest.size for blob, digest in digests.items()} == sizes


def test_who_reads_a_pinned_commit_goes_on_while_the_clone_is_packed_and_replaced(
    fetch: Fetch, key: str, remote: HostedRepository, held: HeldLock
) -> None:
    commit = fetch()
    with clones.open_blobs(key) as blobs:
        entries = sorted(trees.files(blobs, commit), key=attrgetter("path"))
        assert read(blobs, entries[0]) == b"# Handbook\n"
        for number in range(3):
            remote.commit({"README.md": str(number)})
            fetch()
        clones.pack(key, held=held)
        assert clones.count_packs(key) == 1
        assert read(blobs, entries[1]) == b"Start here.\n"
        fetch(anew=True)
        assert read(blobs, entries[2]) == b"\x89PNG\r\n\x00"


def test_who_has_opened_a_clone_goes_on_in_a_part_not_read_yet_after_it_is_renamed(
    fetch: Fetch, key: str, remote: HostedRepository, held: HeldLock
) -> None:
    first = fetch()
    remote.commit({"later.md": "later"})
    second = fetch()
    assert clones.count_packs(key) == 2
    with clones.open_blobs(key) as blobs:
        [later] = [entry for entry in trees.files(blobs, second) if entry.path == b"later.md"]
    with clones.open_blobs(key) as blobs:
        assert len(list(trees.files(blobs, first))) == 3
        assert clones.discard(key, held=held)
        assert read(blobs, later) == b"later"


def test_packing_drops_what_is_not_pinned_and_keeps_what_is(
    fetch: Fetch, key: str, remote: HostedRepository, held: HeldLock
) -> None:
    first = fetch()
    remote.commit({"README.md": "second"})
    second = fetch()
    clones.unpin(key, {first}, held=held)
    clones.pack(key, held=held)
    assert clones.pins(key) == {second}
    assert contents(key, second)[b"README.md"] == b"second"
    with clones.open_blobs(key) as blobs:
        assert blobs.has(clones.pin_of(second))
        assert not blobs.has(clones.pin_of(first))
        assert not blobs.has(first)
    remote.commit({"README.md": "third"})
    assert contents(key, fetch())[b"README.md"] == b"third"


def test_a_fetch_ends_when_the_lock_is_lost(remote: HostedRepository, git_host: GitHost) -> None:
    remote.commit({"noise.bin": os.urandom(300_000)})
    source = clones.Remote(url=RemoteUrl.parse(remote.url))
    tip = clones.look(source, "")
    assert tip
    thief = threading.Timer(0.5, lambda: [force_release(status) for status in lock_status()])
    with git_host.faults.put(GitFault(bytes_per_second=20_000)):
        thief.start()
        with pytest.raises(LockLostError), repo_lock("acme/other", job_id="other", ttl=1) as held:
            clones.refresh("acme/other", source, tip, held=held)
        thief.join()
    assert not clones.path_of("acme/other").exists()


def test_a_worker_that_lost_the_lock_deletes_no_clone(fetch: Fetch, key: str) -> None:
    fetch()
    with pytest.raises(LockLostError), repo_lock("lost/lock", job_id="overtaken") as held:
        held.lease.lose()
        clones.discard(key, held=held)
    assert clones.keys_on_disk() == [key]


def test_a_worker_that_lost_the_lock_replaces_no_clone(
    fetch: Fetch, key: str, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even if it has fetched all of the new one."""
    before = fetch()
    fetch_and_pin = clones._fetch_and_pin

    def lose_the_lock_at_the_end(folder: Path, source: Any, held: HeldLock) -> None:
        fetch_and_pin(folder, source, held)
        held.lease.lose()

    monkeypatch.setattr(clones, "_fetch_and_pin", lose_the_lock_at_the_end)
    remote.commit({"README.md": "new"})
    source = clones.Remote(url=RemoteUrl.parse(remote.url))
    tip = clones.look(source, "")
    assert tip
    with pytest.raises(LockLostError), repo_lock("lost/lock", job_id="overtaken") as held:
        clones.refresh(key, source, tip, anew=True, held=held)
    assert clones.pins(key) == {before}


def test_progress_is_heard(fetch: Fetch, remote: HostedRepository) -> None:
    remote.commit({f"{number}.md": str(number) for number in range(200)})
    heard: list[tuple[int, int]] = []
    fetch(on_progress=lambda done, total: heard.append((done, total)))
    assert heard[-1][0] == heard[-1][1] >= 200


def test_a_large_content_is_never_in_memory_as_a_whole(fetch: Fetch, key: str, remote: HostedRepository) -> None:
    content = os.urandom(30_000_000)
    remote.commit({"large.bin": content})
    commit = fetch()
    tracemalloc.start()
    try:
        with clones.open_blobs(key) as blobs:
            [large] = [entry for entry in trees.files(blobs, commit) if entry.path == b"large.bin"]
            [(_, digest)] = blobs.digests([large.blob], largest=len(content))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (digest.sha256, digest.size) == (hashlib.sha256(content).digest(), len(content))
    assert peak < 3_000_000


def test_only_so_many_fetch_from_one_host_at_a_time(settings: Settings) -> None:
    settings.FETCHES_PER_HOST = 2
    settings.REPO_LOCK_WAIT = 0.1
    with fetch_slot("host", job_id="one"), fetch_slot("host", job_id="two"):
        with pytest.raises(LockTimeoutError), fetch_slot("host", job_id="three"):
            pass
        with fetch_slot("elsewhere", job_id="three"):
            pass
    with fetch_slot("host", job_id="three"):
        pass


def test_the_door_lists_all_that_others_may_use() -> None:
    public = {name for name, thing in vars(clones).items() if getattr(thing, "__module__", "") == clones.__name__}
    assert {name for name in public if not name.startswith("_")} <= set(clones.__all__)
