"""The shared bare clones: one per remote, fetched under its lock, read without one.

Whatever is read names a commit that is pinned by a ref of its own, so a fetch beside it can neither
tear nor take it away. Whatever writes takes `held`, the proof that the lock is ours.
"""

import contextlib
import hashlib
import logging
import shutil
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO

from django.conf import settings

from repositories import git
from repositories.errors import CloneDamaged, GitError, RefNotFound
from repositories.git import Remote
from repositories.repo_lock import HeldLock

__all__ = [
    "Blobs",
    "Digest",
    "Entry",
    "Remote",
    "Tip",
    "discard",
    "look",
    "open_blobs",
    "path_of",
    "refresh",
    "tree",
]

log = logging.getLogger("docora.clones")

SUBMODULE = "160000"
_INCOMING = "refs/docora/incoming"
_PIN = "refs/docora/pin"
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """What a ref stands for at the remote."""

    sha: str
    source: str

    @property
    def branch(self) -> str:
        return self.source.removeprefix("refs/heads/").removeprefix("refs/tags/")


@dataclass(frozen=True, slots=True)
class Entry:
    """A path of a commit; a submodule's blob is the commit that it names."""

    path: bytes
    mode: str
    blob: str


@dataclass(frozen=True, slots=True)
class Digest:
    sha256: bytes
    size: int


def path_of(clone_key: str) -> Path:
    return Path(settings.REPOS_BASE_PATH) / clone_key


def look(remote: Remote, ref: str) -> Tip | None:
    """The remote's tip of ref (empty: its default branch); None if the repository is empty."""
    patterns = [f"refs/heads/{ref}", f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}"] if ref else ["HEAD"]
    found: dict[str, str] = {}
    for line in git.ask(remote, *patterns).decode(errors="replace").splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            found["symref"] = value.removeprefix("ref: ")
        else:
            found[name] = value
    if not ref:
        return Tip(sha=found["HEAD"], source=found.get("symref", "HEAD")) if "HEAD" in found else None
    branch, tag, peeled = patterns
    if branch in found:
        return Tip(sha=found[branch], source=branch)
    if tag in found:
        return Tip(sha=found.get(peeled, found[tag]), source=tag)
    raise RefNotFound(f"The repository has no branch or tag named {ref}.")


def refresh(clone_key: str, remote: Remote, tip: Tip, *, anew: bool = False, held: HeldLock) -> str:
    """Bring the tip into the clone, pin it and return its commit: the remote may have moved on from `tip.sha`.

    A clone that is not there is made beside and renamed, so a half-made one is never visible; a broken
    one is replaced in the same way.
    """
    folder = path_of(clone_key)
    if folder.is_dir() and not anew:
        _sweep(folder, held)
        try:
            return _fetch_and_pin(folder, remote, tip, held)
        except CloneDamaged as error:
            log.warning("Making the clone of %s anew: %s", clone_key, error)
    return _clone(folder, remote, tip, held)


def has(clone_key: str, commit: str) -> bool:
    """Whether the commit is there and pinned."""
    try:
        git.read(path_of(clone_key), "rev-parse", "--verify", "--quiet", f"{_PIN}/{commit}^{{tree}}")
    except GitError:
        return False
    return True


def tree(clone_key: str, commit: str) -> Iterator[Entry]:
    """Every file, symbolic link and submodule of the commit."""
    listing = git.read(path_of(clone_key), "ls-tree", "-r", "-z", "--full-tree", commit)
    for line in filter(None, listing.split(b"\0")):
        facts, _, path = line.partition(b"\t")
        mode, _, blob = facts.decode().split(" ")
        yield Entry(path, mode, blob)


def difference(clone_key: str, old: str, new: str) -> Iterator[tuple[bytes, Entry | None]]:
    """Every path that differs between two commits, with what the new one has there."""
    listing = git.read(path_of(clone_key), "diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", old, new)
    words = iter(listing.split(b"\0")[:-1])
    for facts, path in zip(words, words, strict=True):
        _, mode, _, blob, kind = facts.decode().split(" ")
        yield path, None if kind == "D" else Entry(path, mode, blob)


@contextlib.contextmanager
def open_blobs(clone_key: str) -> Iterator["Blobs"]:
    """Contents by their git names. It goes on reading although the clone is renamed meanwhile."""
    with git.open_process(path_of(clone_key), "cat-file", "--batch") as (requests, answers):
        yield Blobs(requests, answers)


class Blobs:
    # Requests that are written ahead of their answers; they fit into the pipe, so neither side can block.
    _AHEAD = 256

    def __init__(self, requests: IO[bytes], answers: IO[bytes]) -> None:
        self._requests = requests
        self._answers = answers

    def digests(self, blobs: Iterable[str]) -> Iterator[tuple[str, Digest]]:
        """The SHA-256 and the size of each; memory does not grow with their number or size."""
        remaining = iter(blobs)
        while batch := list(islice(remaining, self._AHEAD)):
            self._ask(*batch)
            for blob in batch:
                yield blob, self._digest(blob)

    def contents(self, blobs: Iterable[str]) -> Iterator[Iterator[bytes]]:
        """Each content in pieces, in turn; what the caller leaves of one is read off before the next."""
        remaining = iter(blobs)
        while batch := list(islice(remaining, self._AHEAD)):
            self._ask(*batch)
            for blob in batch:
                pieces = self._pieces(self._size(blob))
                yield pieces
                for _ in pieces:
                    pass

    def _digest(self, blob: str) -> Digest:
        size = self._size(blob)
        sha256 = hashlib.sha256()
        for piece in self._pieces(size):
            sha256.update(piece)
        return Digest(sha256.digest(), size)

    def _ask(self, *blobs: str) -> None:
        try:
            self._requests.write("".join(f"{blob}\n" for blob in blobs).encode())
            self._requests.flush()
        except BrokenPipeError:
            raise CloneDamaged("The clone cannot be read.") from None

    def _size(self, blob: str) -> int:
        answer = self._answers.readline().decode().split()
        if len(answer) != 3:
            raise CloneDamaged(f"The clone lacks {blob}.")
        return int(answer[2])

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._answers.read(min(size, _PIECE))
            if not piece:
                raise CloneDamaged("The clone cannot be read to the end.")
            size -= len(piece)
            yield piece
        self._answers.read(1)


def discard(clone_key: str, *, held: HeldLock) -> Path | None:
    """Rename the clone into the trash, at once whatever its size; `empty` removes it without the lock."""
    folder = path_of(clone_key)
    held.check()
    trash = _aside("trash")
    try:
        folder.rename(trash)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
    return trash


def empty(trash: Path) -> None:
    shutil.rmtree(trash, ignore_errors=True)


def _aside(purpose: str) -> Path:
    """A name on the same volume that no clone key can have."""
    parent = Path(settings.REPOS_BASE_PATH) / f".{purpose}"
    parent.mkdir(parents=True, exist_ok=True)
    return parent / uuid.uuid4().hex


def _clone(folder: Path, remote: Remote, tip: Tip, held: HeldLock) -> str:
    draft = _aside("drafts")
    draft.mkdir()
    try:
        object_format = "sha256" if len(tip.sha) == 64 else "sha1"
        git.write(draft, "init", "--quiet", "--bare", "--template=", f"--object-format={object_format}", held=held)
        commit = _fetch_and_pin(draft, remote, tip, held)
        _swap(draft, folder, held)
    finally:
        empty(draft)
    return commit


def _swap(draft: Path, folder: Path, held: HeldLock) -> None:
    held.check()
    folder.parent.mkdir(parents=True, exist_ok=True)
    old = _aside("trash")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(old)
    draft.rename(folder)
    empty(old)


def _fetch_and_pin(folder: Path, remote: Remote, tip: Tip, held: HeldLock) -> str:
    git.fetch(folder, remote, f"+{tip.source}:{_INCOMING}", held=held)
    commit = git.read(folder, "rev-parse", "--verify", f"{_INCOMING}^{{commit}}").decode().strip()
    orders = f"update {_PIN}/{commit} {commit}\ndelete {_INCOMING}\n"
    git.write(folder, "update-ref", "--stdin", stdin=orders.encode(), held=held)
    return commit


def _sweep(folder: Path, held: HeldLock) -> None:
    """Remove what a killed git left. The file lock says that none is running."""
    with held.inherit():
        left = [
            *folder.glob("*.lock"),
            *folder.glob("refs/docora/**/*.lock"),
            *folder.glob("objects/pack/tmp_*"),
        ]
        for path in left:
            path.unlink(missing_ok=True)
