"""Trees as we read them are trees as git reads them."""

from collections.abc import Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from pytest_django import Settings

from docora.demo.bare import BareRepository, Content, executable, submodule, symlink
from repositories.errors import TooLarge
from repositories.git import _commands, trees
from repositories.git.blobs import Blobs
from repositories.git.trees import Entry

# Few names, so that a file takes the place of a folder and the other way round.
NAMES = st.sampled_from([b"a", b"b", b"a.b", b"\xff", b"with space", b"new\nline"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
CONTENTS: st.SearchStrategy[Content] = st.sampled_from(
    ["", "text", executable(b"run"), symlink(b"target"), submodule("1" * 40)]
)
SNAPSHOTS = st.dictionaries(PATHS, CONTENTS, max_size=8)


@contextmanager
def reading(repository: BareRepository) -> Iterator[Blobs]:
    with _commands.open_process(repository.path, "cat-file", "--batch-command") as pipes:
        yield Blobs(*pipes)


def possible(files: dict[bytes, Content]) -> dict[bytes, Content]:
    """Without those that lie below another file."""
    return {path: content for path, content in files.items() if not any(path.startswith(p + b"/") for p in files)}


def replace_all(repository: BareRepository, files: dict[bytes, Content]) -> str:
    gone: dict[bytes, Content] = dict.fromkeys(entry.path for entry in listed(repository, repository.tip()))
    repository.commit(gone)
    return repository.commit(files)


def listed(repository: BareRepository, commit: str | None) -> list[Entry]:
    lines = repository.git("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1] if commit else []
    return [_entry(*line.split(b"\t", 1)) for line in lines]


def _entry(facts: bytes, path: bytes) -> Entry:
    mode, _, blob = facts.decode().split()
    return Entry(path, mode, blob)


@limits(deadline=None, max_examples=50)
@given(old=SNAPSHOTS.map(possible), new=SNAPSHOTS.map(possible))
def test_files_and_differences_are_those_of_git(old: dict[bytes, Content], new: dict[bytes, Content]) -> None:
    with TemporaryDirectory(prefix="docora-") as folder:
        repository = BareRepository(Path(folder) / "repository")
        first, second = (replace_all(repository, files) for files in (old, new))
        before, after = ({entry.path: entry for entry in listed(repository, commit)} for commit in (first, second))
        with reading(repository) as blobs:
            found = list(trees.files(blobs, second))
            changed = list(trees.differences(blobs, first, second))
    assert found == list(after.values())
    paths = before.keys() | after.keys()
    assert dict(changed) == {path: after.get(path) for path in paths if before.get(path) != after.get(path)}
    assert len(changed) == len(dict(changed))
    assert changed == sorted(changed, key=itemgetter(0))


@pytest.mark.parametrize("bytes_ahead", [trees._BYTES_AHEAD, 2_000, 0])
def test_more_folders_than_are_asked_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_ahead: int
) -> None:
    monkeypatch.setattr(trees, "_BYTES_AHEAD", bytes_ahead)
    repository = BareRepository(tmp_path / "repository")
    commit = repository.commit({f"{n % 7}/{n}/file": "text" for n in range(700)})
    with reading(repository) as blobs:
        assert list(trees.files(blobs, commit)) == listed(repository, commit)


def test_only_folders_that_changed_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = BareRepository(tmp_path / "repository")
    first = repository.commit({f"{n}/{n}/file": "text" for n in range(50)})
    second = repository.commit({"7/7/file": "other"})
    join = Mock(wraps=trees._join)
    monkeypatch.setattr(trees, "_join", join)
    with reading(repository) as blobs:
        assert [path for path, _ in trees.differences(blobs, first, second)] == [b"7/7/file"]
    assert join.call_count == 6


@pytest.mark.parametrize("mode", ["40755", "100664", "100600", "100777", "120777", "60000", "0"])
def test_an_odd_mode_is_what_git_takes_it_for(tmp_path: Path, mode: str) -> None:
    repository = BareRepository(tmp_path / "repository")
    first = repository.commit({"folder/file": "text"})
    name = "folder" if mode == "40755" else "folder/file"
    target = bytes.fromhex(repository.git("rev-parse", f"{first}:{name}").decode())
    tree = b"%s odd\0%s" % (mode.encode(), target)
    odd = repository.git("hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=tree).decode().strip()
    with reading(repository) as blobs:
        assert list(trees.files(blobs, odd)) == listed(repository, odd)


def test_a_repository_within_the_limit_may_change_all_over(tmp_path: Path, settings: Settings) -> None:
    settings.MAX_REPOSITORY_FILES = 60
    repository = BareRepository(tmp_path / "repository")
    first, second = (repository.commit({f"{n % 9}/{n}": text for n in range(60)}) for text in ("one", "two"))
    with reading(repository) as blobs:
        assert len(list(trees.differences(blobs, first, second))) == 60


def test_a_path_that_is_made_to_fill_the_memory_is_refused(tmp_path: Path) -> None:
    repository = BareRepository(tmp_path / "repository")
    inner = repository.git("rev-parse", repository.commit({"file": "text"}) + "^{tree}").decode().strip()
    for _ in range(3):
        entry = b"40000 %s\0%s" % (b"n" * 30_000, bytes.fromhex(inner))
        inner = repository.git("hash-object", "-w", "-t", "tree", "--stdin", stdin=entry).decode().strip()
    with reading(repository) as blobs, pytest.raises(TooLarge, match="path"):
        list(trees.files(blobs, inner))


def test_a_few_trees_that_stand_for_a_billion_files_are_refused(tmp_path: Path, settings: Settings) -> None:
    settings.MAX_REPOSITORY_FILES = 1000
    repository = BareRepository(tmp_path / "repository")
    first = repository.commit({"file": "text"})
    inner = repository.git("rev-parse", f"{first}^{{tree}}").decode().strip()
    for _ in range(9):
        entries = "".join(f"040000 tree {inner}\t{n}\n" for n in range(10))
        inner = repository.git("mktree", stdin=entries.encode()).decode().strip()
    with reading(repository) as blobs, pytest.raises(TooLarge):
        list(trees.files(blobs, inner))
    with reading(repository) as blobs, pytest.raises(TooLarge):
        list(trees.differences(blobs, first, inner))


def test_a_chain_of_wide_folders_is_not_kept_in_memory_uncounted(tmp_path: Path, settings: Settings) -> None:
    """The first entry of each folder leads further down. The others wait, and must count before they are reached."""
    settings.MAX_REPOSITORY_FILES = 1000
    repository = BareRepository(tmp_path / "repository")
    first = repository.commit({"file": "text"})
    leaf = inner = repository.git("rev-parse", f"{first}^{{tree}}").decode().strip()
    for _ in range(20):
        entries = f"040000 tree {inner}\t0\n" + "".join(f"040000 tree {leaf}\t{n}\n" for n in range(1, 100))
        inner = repository.git("mktree", stdin=entries.encode()).decode().strip()
    with reading(repository) as blobs, pytest.raises(TooLarge):
        next(trees.files(blobs, inner))
