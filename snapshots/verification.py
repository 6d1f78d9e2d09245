"""Compare what an app says that it has with what it acknowledged, and send again what it lacks.

The app's word decides only what is sent again. A path that Docora never knew is named, not deleted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from repositories.models import Watch
from snapshots.delivery import redelivery
from snapshots.models import HELD, Delivered, File, FileVersion
from snapshots.packed import batches
from snapshots.paths import GitPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Paths, each in one list at most."""

    # The app acknowledged them and does not have them.
    missing: list[bytes]
    # It has another content than the one that it acknowledged.
    different: list[bytes]
    # It has them although they are deleted, or not chosen any more.
    extra: list[bytes]
    # It has them although it did not acknowledge them: they are on their way, or were refused. Or it acknowledged them
    # and does not have them, and they cannot be sent: their delete is on its way, or they are too large by now.
    pending: list[bytes]
    # Docora never knew them.
    unknown: list[bytes]

    @property
    def is_none(self) -> bool:
        return not (self.missing or self.different or self.extra or self.pending or self.unknown)


def verify(watch: Watch, claimed: dict[bytes, bytes], *, partial: bool = False) -> Difference:
    """`claimed` has the SHA-256 of each path that the app has; `partial`: of some of them. It is used up.

    What is missing or different is sent again, and so are the deletes of what the app should not have any more.
    """
    missing, different = dict[int, bytes](), dict[int, bytes]()
    for file_id, path, sha256 in _acknowledged_of(watch, list(claimed)) if partial else _acknowledged(watch):
        has = claimed.pop(path, None)
        if has is None and not partial:
            missing[file_id] = path
        elif has is not None and has != sha256:
            different[file_id] = path
    wanted = missing | different
    unsent = {file_id: wanted[file_id] for file_id in wanted.keys() - _tellable(watch, wanted)}
    for file_id in unsent:
        missing.pop(file_id, None)
        different.pop(file_id, None)
    known = dict(_known(watch, claimed))
    gone = {file_id: path for file_id, path in known.items() if not watch.selection.takes_path(GitPath(path).text)}
    gone |= _deleted(known)
    if missing or different or gone:
        deletes = {file_id: claimed[path] for file_id, path in gone.items()}
        redelivery.send_again(watch, creates=missing, updates=different, deletes=deletes)
    paths = set(known.values())
    return Difference(
        missing=sorted(missing.values()),
        different=sorted(different.values()),
        extra=sorted(gone.values()),
        pending=sorted(paths.difference(gone.values()).union(unsent.values())),
        unknown=sorted(claimed.keys() - paths),
    )


def _acknowledged(watch: Watch) -> Iterator[tuple[int, bytes, bytes]]:
    rows = Delivered.objects.filter(HELD, watch=watch)
    columns = rows.values_list("file_id", "file__path", "file__raw_path", "sha256")
    for file_id, path, raw, sha256 in columns.iterator(chunk_size=2000):
        yield file_id, GitPath.of_row(path, raw).raw, bytes(sha256)


def _acknowledged_of(watch: Watch, paths: list[bytes]) -> Iterator[tuple[int, bytes, bytes]]:
    """The same for these paths alone, without reading what else the app has."""
    known = dict(_known(watch, paths))
    for batch in batches(known):
        rows = Delivered.objects.filter(HELD, watch=watch, file__in=batch)
        for file_id, sha256 in rows.values_list("file_id", "sha256"):
            yield file_id, known[file_id], bytes(sha256)


def _known(watch: Watch, paths: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """The paths that the repository has, or had, with the ids of their files."""
    for batch in batches(paths):
        by_digest = {GitPath(path).digest: path for path in batch}
        files = File.objects.filter(repository=watch.repository_id, path_digest__in=list(by_digest))
        for file_id, digest in files.values_list("pk", "path_digest"):
            yield file_id, by_digest[bytes(digest)]


def _deleted(known: dict[int, bytes]) -> dict[int, bytes]:
    here = {file_id for file_id, _, _ in _versions(known)}
    return {file_id: path for file_id, path in known.items() if file_id not in here}


def _tellable(watch: Watch, paths: dict[int, bytes]) -> set[int]:
    """Files that are there, chosen, and not too large to be sent: those have no digest, or are not chosen."""
    takes = watch.selection.takes
    return {pk for pk, sha256, size in _versions(paths) if sha256 and takes(GitPath(paths[pk]).text, size)}


def _versions(file_ids: Iterable[int]) -> Iterator[tuple[int, bytes | memoryview, int]]:
    """What the files are now: the id, the SHA-256 and the size of each that is there."""
    for batch in batches(file_ids):
        current = FileVersion.objects.filter(file__in=batch, until=None)
        yield from current.values_list("file_id", "sha256", "size")
