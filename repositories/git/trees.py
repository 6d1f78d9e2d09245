"""The files of a commit, and what differs between two, from git's own tree objects.

A tree is read only where it can matter: two commits share the trees of every folder in which nothing changed. While
one of these is being listed, its `blobs` must not be asked for anything else.
"""

import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from django.conf import settings

from repositories.errors import TooLarge
from repositories.git.blobs import Blobs

T = TypeVar("T")

SUBMODULE = "160000"
_FOLDER = "040000"
# So many trees are asked for at once. What waits stays small: the folders found last are read first.
_AHEAD = 64
# By the length of an id, which is binary: SHA-1 or SHA-256.
_ENTRY = {width: re.compile(rb"(\d+) ([^\0]+)\0(.{%d})" % width, re.DOTALL) for width in (20, 32)}
# Longer paths, and larger trees, are made to fill our memory.
_LONGEST_PATH = 1 << 16
_LARGEST_TREE = 1 << 26


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of a commit; a submodule's blob is the commit that it names."""

    path: bytes
    mode: str
    blob: str


_Tree = dict[bytes, Entry]


def files(blobs: Blobs, commit: str) -> Iterator[Entry]:
    """Every file, symbolic link and submodule of the commit, folder by folder."""
    reader = _Reader(blobs, commit)
    waiting = [(b"", f"{commit}^{{tree}}")]
    while waiting:
        for tree in reader.read(_take_last(waiting)):
            reader.spend(tree)
            waiting += [(entry.path + b"/", entry.blob) for entry in tree.values() if entry.mode == _FOLDER]
            yield from (entry for entry in tree.values() if entry.mode != _FOLDER)


def differences(blobs: Blobs, old: str, new: str) -> Iterator[tuple[bytes, Entry | None]]:
    """Every path that differs between two commits, with what the new one has there."""
    reader = _Reader(blobs, new)
    waiting = [(b"", f"{old}^{{tree}}", f"{new}^{{tree}}")]
    while waiting:
        batch = _take_last(waiting)
        before = list(reader.read((folder, tree) for folder, tree, _ in batch))
        after = reader.read((folder, tree) for folder, _, tree in batch)
        for was, now in zip(before, after, strict=True):
            reader.spend(now)
            changed = [path for path in was.keys() | now.keys() if was.get(path) != now.get(path)]
            waiting += _changed_folders(changed, was, now)
            yield from _changed_files(changed, was, now)


def _take_last(waiting: list[T]) -> list[T]:
    taken = waiting[-_AHEAD:]
    del waiting[-_AHEAD:]
    return taken


def _changed_folders(changed: list[bytes], was: _Tree, now: _Tree) -> Iterator[tuple[bytes, str, str]]:
    for path in changed:
        old, new = _tree_at(path, was), _tree_at(path, now)
        if old or new:
            yield path + b"/", old, new


def _changed_files(changed: list[bytes], was: _Tree, now: _Tree) -> Iterator[tuple[bytes, Entry | None]]:
    for path in changed:
        entry = now.get(path)
        if entry and entry.mode != _FOLDER:
            yield path, entry
        elif path in was and was[path].mode != _FOLDER:
            yield path, None


def _tree_at(path: bytes, entries: _Tree) -> str:
    entry = entries.get(path)
    return entry.blob if entry and entry.mode == _FOLDER else ""


class _Reader:
    """Reads trees, and knows when it is enough.

    A few small trees can stand for any number of files, because each of them is in another one many times.
    """

    def __init__(self, blobs: Blobs, commit: str) -> None:
        self._blobs = blobs
        self._width = len(commit) // 2
        self._files_left = self._folders_left = settings.MAX_REPOSITORY_FILES

    def read(self, trees: Iterable[tuple[bytes, str]]) -> Iterator[_Tree]:
        """The entries of each tree by their full paths; an empty name stands for a folder that is not there."""
        trees = list(trees)
        contents = self._blobs.contents(tree for _, tree in trees if tree)
        for folder, tree in trees:
            yield self._parse(folder, _join(next(contents))) if tree else {}

    def spend(self, tree: _Tree) -> None:
        folders = sum(entry.mode == _FOLDER for entry in tree.values())
        self._folders_left -= folders
        self._files_left -= len(tree) - folders
        if min(self._files_left, self._folders_left) < 0:
            raise TooLarge(f"The repository exceeds the limit of {settings.MAX_REPOSITORY_FILES} files.")

    def _parse(self, folder: bytes, content: bytes) -> _Tree:
        """`mode name NUL id`, one after the other."""
        if len(folder) > _LONGEST_PATH:
            raise TooLarge(f"The repository has a path of more than {_LONGEST_PATH} bytes.")
        entries = {}
        for found in _ENTRY[self._width].finditer(content):
            mode, name, blob = found.groups()
            path = folder + name
            entries[path] = Entry(path, _canonical(int(mode, 8)), blob.hex())
        return entries


def _join(pieces: Iterable[bytes]) -> bytes:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > _LARGEST_TREE:
            raise TooLarge(f"The repository has a folder whose listing exceeds {_LARGEST_TREE} bytes.")
    return bytes(content)


def _canonical(mode: int) -> str:
    """The mode that git takes an entry for; old and odd repositories have many more."""
    if stat.S_ISDIR(mode):
        return _FOLDER
    if stat.S_ISLNK(mode):
        return "120000"
    if stat.S_ISREG(mode):
        return "100755" if mode & stat.S_IXUSR else "100644"
    return SUBMODULE
