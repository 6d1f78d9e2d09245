"""The files of a commit, and what differs between two, from git's own tree objects.

A tree is read only where it can matter: two commits share the trees of every folder in which nothing changed.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from django.conf import settings

from repositories.blobs import Blobs
from repositories.errors import TooLarge

T = TypeVar("T")
SUBMODULE = "160000"
_FOLDER = "040000"
# So many trees are asked for at once. What waits stays small: the folders found last are read first.
_AHEAD = 64
# By the length of an id, which is binary: SHA-1 or SHA-256.
_ENTRY = {width: re.compile(rb"(\d+) ([^\0]+)\0(.{%d})" % width, re.DOTALL) for width in (20, 32)}


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of a commit; a submodule's blob is the commit that it names."""

    path: bytes
    mode: str
    blob: str


_Tree = dict[bytes, Entry]


def files(blobs: Blobs, commit: str) -> Iterator[Entry]:
    """Every file, symbolic link and submodule of the commit, folder by folder."""
    read = partial(_read, blobs, _Budget(), commit)
    waiting = [(b"", f"{commit}^{{tree}}")]
    while waiting:
        batch = _take_last(waiting)
        for tree in read(batch):
            waiting += [(entry.path + b"/", entry.blob) for entry in tree.values() if entry.mode == _FOLDER]
            yield from (entry for entry in tree.values() if entry.mode != _FOLDER)


def differences(blobs: Blobs, old: str, new: str) -> Iterator[tuple[bytes, Entry | None]]:
    """Every path that differs between two commits, with what the new one has there."""
    read = partial(_read, blobs, _Budget(), new)
    waiting = [(b"", f"{old}^{{tree}}", f"{new}^{{tree}}")]
    while waiting:
        batch = _take_last(waiting)
        before = read([(folder, tree) for folder, tree, _ in batch])
        after = read([(folder, tree) for folder, _, tree in batch])
        for was, now in zip(list(before), after, strict=True):
            waiting += _changed_folders(was, now)
            yield from _changed_files(was, now)


def _take_last(waiting: list[T]) -> list[T]:
    taken = waiting[-_AHEAD:]
    del waiting[-_AHEAD:]
    return taken


def _changed_folders(was: _Tree, now: _Tree) -> Iterator[tuple[bytes, str, str]]:
    for path in _changed(was, now):
        old, new = _tree_at(path, was), _tree_at(path, now)
        if old or new:
            yield path + b"/", old, new


def _changed_files(was: _Tree, now: _Tree) -> Iterator[tuple[bytes, Entry | None]]:
    for path in _changed(was, now):
        entry = now.get(path)
        if entry and entry.mode != _FOLDER:
            yield path, entry
        elif path in was and was[path].mode != _FOLDER:
            yield path, None


def _changed(was: _Tree, now: _Tree) -> list[bytes]:
    return [path for path in was.keys() | now.keys() if was.get(path) != now.get(path)]


def _tree_at(path: bytes, entries: _Tree) -> str:
    entry = entries.get(path)
    return entry.blob if entry and entry.mode == _FOLDER else ""


class _Budget:
    """A few small trees can stand for any number of files: each of them is in another one many times."""

    def __init__(self) -> None:
        self._left = settings.MAX_REPOSITORY_FILES

    def spend(self, entries: int) -> None:
        self._left -= entries
        if self._left < 0:
            raise TooLarge(f"The repository exceeds the limit of {settings.MAX_REPOSITORY_FILES} files.")


def _read(blobs: Blobs, budget: _Budget, commit: str, trees: list[tuple[bytes, str]]) -> Iterator[_Tree]:
    """The entries of each tree by their full paths; no name stands for a folder that is not there."""
    contents = blobs.contents(tree for _, tree in trees if tree)
    for folder, tree in trees:
        entries = _parse(folder, b"".join(next(contents)), len(commit) // 2) if tree else {}
        budget.spend(len(entries))
        yield entries


def _parse(folder: bytes, content: bytes, width: int) -> _Tree:
    """`mode name NUL id`, one after the other."""
    entries = {}
    for found in _ENTRY[width].finditer(content):
        mode, name, blob = found.groups()
        path = folder + name
        entries[path] = Entry(path, sys.intern(f"{int(mode, 8):06o}"), blob.hex())
    return entries
