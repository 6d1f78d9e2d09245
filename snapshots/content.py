"""The bytes of one file at the newest snapshot, streamed out of the clone."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from repositories.errors import CloneDamaged, ContentUnavailable, NoSuchFile
from repositories.git import clones
from repositories.models import Watch
from snapshots import manifest
from snapshots.models import File, FileVersion
from snapshots.paths import GitPath


def find(watch: Watch, path: str) -> FileVersion:
    """The file at the newest snapshot.

    A byte of a path that is not UTF-8 is written as %XX, as in the list of files.
    """
    for candidate in GitPath.all_shown_as(path):
        # Two queries: of a join, PostgreSQL may begin at the other end and read every version of the repository.
        file = File.objects.filter(repository=watch.repository_id, path_digest=candidate.digest).first()
        version = manifest.content_of(file, watch.repository.sequence) if file else None
        if version and watch.selection.takes(candidate.text, version.size):
            return version
    raise NoSuchFile


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from `start` up to, not including, `stop`."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


class Content:
    """Some bytes of a blob, read while they are sent. Closing it ends git; so does an error at the start."""

    def __init__(self, clone_key: str, blob: str, span: Span) -> None:
        self._span = span
        with ExitStack() as stack:
            try:
                blobs = stack.enter_context(clones.open_blobs(clone_key))
                self._pieces = next(blobs.contents([blob]))
            except CloneDamaged:
                raise ContentUnavailable from None
            self._git = stack.pop_all()

    def __iter__(self) -> Iterator[bytes]:
        position = 0
        for piece in self._pieces:
            wanted = piece[max(0, self._span.start - position) : max(0, self._span.stop - position)]
            position += len(piece)
            if wanted:
                yield wanted
            if position >= self._span.stop:
                return

    def close(self) -> None:
        self._git.close()
