"""What a clone contains, read by one `git cat-file` that answers questions for as long as it is open."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import IO, NamedTuple

from repositories.errors import CloneDamaged

# Questions that are written ahead of their answers; they fit into the pipe, so neither side can block.
_AHEAD = 256
_PIECE = 1 << 18


class Digest(NamedTuple):
    """The SHA-256 and the size of one content; one that is too large has no SHA-256."""

    sha256: bytes
    size: int


@dataclass(frozen=True, slots=True)
class _Found:
    kind: str
    size: int


class Blobs:
    """Contents by their git names. CloneDamaged if one that should be there is missing."""

    def __init__(self, questions: IO[bytes], answers: IO[bytes]) -> None:
        self._questions = questions
        self._answers = answers

    def has(self, name: str) -> bool:
        self._ask("info", [name])
        return self._answer() is not None

    def read_small(self, name: str, longest: int) -> bytes | None:
        """The content of a file such as `commit:path`; None if it is not there, no file, or longer."""
        self._ask("info", [name])
        found = self._answer()
        if found is None or found.kind != "blob" or found.size > longest:
            return None
        return b"".join(next(self.contents([name])))

    def sizes(self, blobs: Iterable[str]) -> Iterator[tuple[str, int]]:
        """The size of each, without reading it."""
        for batch in _batches(blobs):
            yield from self._sizes_of(batch)

    def digests(self, blobs: Iterable[str], *, largest: int) -> Iterator[tuple[str, Digest]]:
        """The SHA-256 and the size of each; memory does not grow with their number or size."""
        for batch in _batches(blobs):
            sizes = self._sizes_of(batch)
            wanted = [blob for blob, size in sizes if size <= largest]
            yield from ((blob, Digest(b"", size)) for blob, size in sizes if size > largest)
            self._ask("contents", wanted)
            for blob in wanted:
                yield blob, self._digest(blob)

    def contents(self, blobs: Iterable[str]) -> Iterator[Iterator[bytes]]:
        """Each content in pieces, in turn; what the caller leaves of one is read off before the next.

        Git is asked for the next ones early, so it goes on reading while the caller works.
        """
        remaining, asked = iter(blobs), deque[str]()
        while True:
            if len(asked) <= _AHEAD // 2:
                batch = list(islice(remaining, _AHEAD - len(asked)))
                self._ask("contents", batch)
                asked += batch
            if not asked:
                return
            pieces = self._pieces(self._size(asked.popleft()))
            yield pieces
            for _ in pieces:
                pass

    def _sizes_of(self, batch: list[str]) -> list[tuple[str, int]]:
        self._ask("info", batch)
        return [(blob, self._size(blob)) for blob in batch]

    def _digest(self, blob: str) -> Digest:
        size = self._size(blob)
        sha256 = hashlib.sha256()
        for piece in self._pieces(size):
            sha256.update(piece)
        return Digest(sha256.digest(), size)

    def _ask(self, what: str, names: list[str]) -> None:
        try:
            self._questions.write("".join(f"{what} {name}\n" for name in names).encode())
            self._questions.flush()
        except BrokenPipeError:
            raise CloneDamaged("The clone cannot be read.") from None

    def _answer(self) -> _Found | None:
        """`name kind size`, or `name missing`; the name may have blanks in it."""
        line = self._answers.readline().decode(errors="replace")
        if not line:
            raise CloneDamaged("The clone cannot be read.")
        *_, kind, size = line.split() if " " in line else ("", "")
        return _Found(kind, int(size)) if size.isdecimal() else None

    def _size(self, blob: str) -> int:
        found = self._answer()
        if found is None:
            raise CloneDamaged(f"The clone lacks {blob}.")
        return found.size

    def _pieces(self, size: int) -> Iterator[bytes]:
        while size:
            piece = self._answers.read(min(size, _PIECE))
            if not piece:
                raise CloneDamaged("The clone cannot be read to the end.")
            size -= len(piece)
            yield piece
        self._answers.read(1)


def _batches(names: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(names)
    while batch := list(islice(remaining, _AHEAD)):
        yield batch
