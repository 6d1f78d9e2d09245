"""The files of a commit, and what differs between two, from git's own tree objects.

A tree is read only where it can matter: two commits share the trees of every folder in which nothing changed. Trees
are kept as git has them, and are taken apart entry by entry: memory does not grow with the number of files. While one
of these is being listed, its `blobs` must not be asked for anything else.
"""

import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice

from django.conf import settings

from repositories.errors import TooLarge
from repositories.git.blobs import Blobs

SUBMODULE = "160000"
_FOLDER = "040000"
# Trees that are asked for at once; one by one while those that wait to be walked take more bytes than that.
_AHEAD = 64
_BYTES_AHEAD = 1 << 22
# By the length of an id, which is binary: SHA-1 or SHA-256.
_ENTRY = {width: re.compile(rb"(\d+) ([^\0]+)\0(.{%d})" % width, re.DOTALL) for width in (20, 32)}
# Longer paths and larger trees are refused: they are made to fill our memory.
_LONGEST_PATH = 1 << 16
_LARGEST_TREE = 1 << 26


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of a commit; a submodule's blob is the commit that it names."""

    path: bytes
    mode: str
    blob: str

    @property
    def place(self) -> bytes:
        """What git sorts a tree by: it puts all files of a commit in the order of their paths."""
        return self.path + b"/" if self.mode == _FOLDER else self.path


def files(blobs: Blobs, commit: str) -> Iterator[Entry]:
    """Every file, symbolic link and submodule of the commit, in the order of their paths."""
    return (entry for _, entry in _Walk(blobs, commit).changes("", f"{commit}^{{tree}}") if entry)


def differences(blobs: Blobs, old: str, new: str) -> Iterator[tuple[bytes, Entry | None]]:
    """Every path that differs between two commits, in the order of the paths, with what the new one has there."""
    return _Walk(blobs, new).changes(f"{old}^{{tree}}", f"{new}^{{tree}}")


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder that differs, as two trees; the one where it is not there is empty."""

    path: bytes
    was: bytes
    now: bytes


_Pair = tuple[Entry | None, Entry | None]


class _Walk:
    """Goes through two trees side by side, up to a limit of files and folders.

    Without the limit, a few small trees that are in each other many times could stand for any number of files.
    """

    def __init__(self, blobs: Blobs, commit: str) -> None:
        self._blobs = blobs
        self._entry = _ENTRY[len(commit) // 2]
        self._files_left = self._folders_left = settings.MAX_REPOSITORY_FILES
        self._bytes_ahead = 0

    def changes(self, old: str, new: str) -> Iterator[tuple[bytes, Entry | None]]:
        """Depth first. `way` is the stack of folders from the root to here, each with the entries that are left."""
        ((was, now),) = self._read([(old, new)])
        way = [self._differing(_Folder(b"", was, now))]
        while way:
            found = next(way[-1], None)
            if found is None:
                way.pop()
            elif isinstance(found, _Folder):
                way.append(self._differing(found))
            else:
                yield found

    def _differing(self, folder: _Folder) -> Iterator[tuple[bytes, Entry | None] | _Folder]:
        """What differs in one folder, without what is below."""
        if len(folder.path) > _LONGEST_PATH:
            raise TooLarge(f"The repository has a path of more than {_LONGEST_PATH} bytes.")
        self._spend(folder.now)
        below = self._trees_below(folder)
        for old, new in self._pairs(folder):
            if path := _folder_of(old, new):
                yield _Folder(path, *next(below))
            elif entry := new or old:
                yield entry.path, new

    def _pairs(self, folder: _Folder) -> Iterator[_Pair]:
        return _unequal(self._parse(folder.path, folder.was), self._parse(folder.path, folder.now))

    def _trees_below(self, folder: _Folder) -> Iterator[tuple[bytes, bytes]]:
        """The two trees of each folder in it that differs, in order. Many are read at once, ahead of the walk."""
        pairs = (pair for pair in self._pairs(folder) if _folder_of(*pair))
        names = ((old.blob if old else "", new.blob if new else "") for old, new in pairs)
        while batch := list(islice(names, _AHEAD)):
            size = sum(size for _, size in self._blobs.sizes(name for pair in batch for name in pair if name))
            at_once = _AHEAD if self._bytes_ahead + size <= _BYTES_AHEAD else 1
            for start in range(0, len(batch), at_once):
                ahead = self._read(batch[start : start + at_once])
                self._bytes_ahead += sum(len(was) + len(now) for was, now in ahead)
                ahead.reverse()
                while ahead:
                    was, now = ahead.pop()
                    self._bytes_ahead -= len(was) + len(now)
                    yield was, now

    def _read(self, names: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
        """An empty name stands for a folder that is not there."""
        contents = self._blobs.contents(name for pair in names for name in pair if name)
        return [(_join(next(contents)) if old else b"", _join(next(contents)) if new else b"") for old, new in names]

    def _spend(self, tree: bytes) -> None:
        """Count the tree's entries against the limits, before anything below it is read."""
        modes = [_canonical(found[1]) for found in self._entry.finditer(tree)]
        folders = modes.count(_FOLDER)
        self._folders_left -= folders
        self._files_left -= len(modes) - folders
        if min(self._files_left, self._folders_left) < 0:
            raise TooLarge(f"The repository exceeds the limit of {settings.MAX_REPOSITORY_FILES} files.")

    def _parse(self, folder: bytes, tree: bytes) -> Iterator[Entry]:
        """`mode name NUL id`, one after the other."""
        for found in self._entry.finditer(tree):
            mode, name, blob = found.groups()
            yield Entry(folder + name, _canonical(mode), blob.hex())


def _unequal(was: Iterator[Entry], now: Iterator[Entry]) -> Iterator[_Pair]:
    """What is in one of them, or differs. Both are in git's order: fetching refuses a tree that is not."""
    old, new = next(was, None), next(now, None)
    while old or new:
        if old is None or (new and new.place < old.place):
            yield None, new
            new = next(now, None)
        elif new is None or old.place < new.place:
            yield old, None
            old = next(was, None)
        else:
            if old != new:
                yield old, new
            old, new = next(was, None), next(now, None)


def _folder_of(old: Entry | None, new: Entry | None) -> bytes:
    """The path of what is a folder on both sides, or on the only one; else empty."""
    entry = new or old
    return entry.place if entry and entry.mode == _FOLDER else b""


def _join(pieces: Iterable[bytes]) -> bytes:
    content = bytearray()
    for piece in pieces:
        content += piece
        if len(content) > _LARGEST_TREE:
            raise TooLarge(f"The repository has a folder whose listing exceeds {_LARGEST_TREE} bytes.")
    return bytes(content)


@lru_cache(maxsize=64)
def _canonical(octal: bytes) -> str:
    """The mode that git takes an entry for; old and odd repositories have many more."""
    mode = int(octal, 8)
    if stat.S_ISDIR(mode):
        return _FOLDER
    if stat.S_ISLNK(mode):
        return "120000"
    if stat.S_ISREG(mode):
        return "100755" if mode & stat.S_IXUSR else "100644"
    return SUBMODULE
