"""The manifest: every file of a repository with its SHA-256, at each commit that Docora saw.

Written in one transaction, guarded by the fencing number of the fetch: a worker that was overtaken
while it hashed cannot put an older commit over a newer one. Memory hardly grows with the number of files: they are
listed, compared and written in batches, and only packed rows are kept in between.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import chain, pairwise
from typing import Any, NamedTuple

from django.conf import settings
from django.db import transaction
from django.db.models import F, Q, QuerySet

from repositories.errors import TooLarge
from repositories.git import clones, trees
from repositories.git.blobs import Blobs, Digest
from repositories.git.trees import Entry
from repositories.models import Repository
from snapshots import ignore, rows
from snapshots.models import File, FileVersion, Snapshot
from snapshots.packed import Packed, batches
from snapshots.paths import GitPath

log = logging.getLogger("docora.snapshots")

_TOO_LARGE = "too-large"
_SUBMODULE = "submodule"
_MOST_LEFT_OUT = 1000


def at(repository_id: int, sequence: int) -> QuerySet[FileVersion]:
    """The files of snapshot number `sequence`, also when newer snapshots have been taken since."""
    versions = FileVersion.objects.filter(repository_id=repository_id, since__lte=sequence)
    return versions.filter(Q(until=None) | Q(until__gt=sequence))


def contents_at(repository_id: int, sequence: int) -> QuerySet[FileVersion]:
    """Those of them that can be told: not the ones that are too large, which are there without a digest."""
    return at(repository_id, sequence).exclude(sha256=b"")


def content_of(file: File, sequence: int) -> FileVersion | None:
    """One file of a snapshot. Filtered by the file alone: with the repository, SQLite would scan all its versions."""
    versions = FileVersion.objects.filter(Q(until=None) | Q(until__gt=sequence), file=file, since__lte=sequence)
    return next(iter(versions.exclude(sha256=b"")), None)


def page_of_contents(repository_id: int, sequence: int, *, after: int, limit: int) -> list[FileVersion]:
    """The first of them behind the file `after`, in the order of the files.

    The current versions first: one that a newer snapshot ends in between is then found among the ended ones. Each of
    the two has an index that begins at the page; one condition with OR reads every file for each page.
    """
    versions = FileVersion.objects.filter(repository_id=repository_id, since__lte=sequence, file__gt=after)
    told = versions.exclude(sha256=b"")
    # Ordered by `until` too, which is null in all of them: only so does PostgreSQL take the rows as its index has them.
    current = list(told.filter(until=None).order_by("until", "file_id")[:limit])
    # Sorted here: to have them sorted, SQLite would go through the files, of all repositories.
    ended_later = told.filter(until__gt=sequence)
    if len(current) == limit:
        ended_later = ended_later.filter(file__lte=current[-1].file_id)
    found = {version.file_id: version for version in chain(current, ended_later)}
    return [found[file_id] for file_id in sorted(found)][:limit]


def last_change(repository: Repository) -> datetime:
    return last_changes([repository])[repository.pk]


def last_changes(repositories: Iterable[Repository]) -> dict[int, datetime]:
    """When the newest snapshot of each was taken; before the first one, when the repository was watched first."""
    found = {repository.pk: repository.created_at for repository in repositories}
    newest = Snapshot.objects.filter(repository__in=list(found), sequence=F("repository__sequence"))
    return found | dict(newest.values_list("repository_id", "taken_at"))


class _Change(NamedTuple):
    """A path at which a commit differs from the manifest: what the commit has there, and what the manifest had.

    No blob: the path is gone, is ignored now, or is a submodule. No version: the manifest had nothing there.
    """

    path: bytes
    mode: str
    blob: str
    version_id: int | None = None
    file_id: int | None = None
    had_size: int = 0
    had_sha256: bytes = b""


_NO_DIGEST = Digest(b"", 0)
_Digested = list[tuple[_Change, Digest]]


def write(
    repository_id: int,
    commit: str,
    *,
    branch: str,
    fence: int,
    noticed_at: datetime | None = None,
    fetched_at: datetime | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> bool:
    """Write down the pinned commit; False if a newer fetch has been written, or the repository is gone."""
    while repository := Repository.objects.filter(pk=repository_id, fence__lt=fence).first():
        last = Snapshot.objects.filter(repository=repository, sequence=repository.sequence).first()
        with clones.open_blobs(repository.clone_key) as blobs:
            # All of them before the first content is read: one git lists the commit, and then reads from it.
            changes = Packed(_Change._make, _compare(repository, last, commit, blobs))
            digests = Packed(Digest._make, _digests(repository, changes, blobs, on_progress or _nobody_listens))
        with transaction.atomic():
            base = Repository.objects.select_for_update(no_key=True).filter(
                pk=repository_id, sequence=repository.sequence
            )
            if base.exists():
                snapshot = Snapshot(commit_sha=commit, branch=branch, noticed_at=noticed_at, fetched_at=fetched_at)
                _store(repository, last, snapshot, fence, map(list, map(zip, changes, digests)))
                return True
    log.info("Dropped the snapshot of repository %s at %s: it was overtaken", repository_id, commit)
    return False


def note_branch(repository: Repository, branch: str) -> None:
    """The ref stands for another branch now, at the commit that is known."""
    with transaction.atomic():
        if Repository.objects.filter(pk=repository.pk, sequence=repository.sequence).update(branch=branch):
            Snapshot.objects.filter(repository=repository, sequence=repository.sequence).update(branch=branch)


def _nobody_listens(done: int, total: int) -> None:
    pass


def _compare(repository: Repository, last: Snapshot | None, commit: str, blobs: Blobs) -> Iterator[_Change]:
    """With the manifest: by the trees of the last commit, or in full where those do not tell."""
    rules = ignore.rules_at(commit, blobs)
    if last and _trees_are_enough(last, commit, blobs):
        for listed in batches(trees.differences(blobs, last.commit_sha, commit)):
            yield from _changes(listed, _known(repository, listed), rules)
    else:
        for item in last.left_out if last else ():
            if item["reason"] == _SUBMODULE:  # the manifest does not have it; one that is still there is listed again
                yield _Change(item["path"].encode(), "", "")
        yield from _all_changes(repository, commit, blobs, rules)


def _trees_are_enough(last: Snapshot, commit: str, blobs: Blobs) -> bool:
    """Unless the last commit is not there any more, or something else is ignored or too large now."""
    if not blobs.has(clones.pin_of(last.commit_sha)):
        return False
    return ignore.are_the_same(last.commit_sha, commit, blobs) and not _limit_was_raised(last)


def _limit_was_raised(last: Snapshot) -> bool:
    return any(item["reason"] == _TOO_LARGE and item["size"] <= settings.MAX_FILE_BYTES for item in last.left_out)


def _all_changes(repository: Repository, commit: str, blobs: Blobs, rules: ignore.Rules) -> Iterator[_Change]:
    present: set[int] = set()
    for entries in batches(trees.files(blobs, commit)):
        listed: _Listed = [(entry.path, entry) for entry in entries]
        known = _known(repository, listed)
        present.update(old.file_id for old in known.values())
        yield from _changes(listed, known, rules)
    if repository.sequence:
        everything = _columns(FileVersion.objects.filter(repository=repository, until=None))
        for path, old in _known_by_path(everything.iterator(chunk_size=2000)):
            if old.file_id not in present:
                yield old.replaced_by(path)


class _Known(NamedTuple):
    """A file of the manifest before this snapshot."""

    version_id: int
    file_id: int
    mode: str
    blob: str
    size: int
    sha256: bytes

    def is_still(self, mode: str, blob: str) -> bool:
        """False also for a file that was larger than MAX_FILE_BYTES and fits now: it has yet to be hashed."""
        return (self.mode, self.blob) == (mode, blob) and bool(self.sha256 or self.size > settings.MAX_FILE_BYTES)

    def replaced_by(self, path: bytes, mode: str = "", blob: str = "") -> _Change:
        return _Change(path, mode, blob, self.version_id, self.file_id, self.size, self.sha256)


_Listed = list[tuple[bytes, Entry | None]]


def _changes(listed: _Listed, known: dict[bytes, _Known], rules: ignore.Rules) -> Iterator[_Change]:
    """In the order in which they are listed, which is that of the paths: so apps are told."""
    for path, entry in listed:
        old, mode, blob = known.get(path), "", ""
        if entry and entry.mode == trees.SUBMODULE:
            mode = entry.mode
        elif entry and not rules.hide(path):
            mode, blob = entry.mode, entry.blob
        if old is None and (mode or entry is None):  # gone, and not in the manifest: it may have been left out
            yield _Change(path, mode, blob)
        elif old and not old.is_still(mode, blob):
            yield old.replaced_by(path, mode, blob)


def _known(repository: Repository, listed: _Listed) -> dict[bytes, _Known]:
    """Of these paths, those that the manifest has now."""
    if not repository.sequence:
        return {}
    # Not in one query: PostgreSQL without statistics would join every version of the repository first.
    ids = _ids_by_path(repository, {GitPath(path).digest: path for path, _ in listed})
    # Read at once: for a batch of paths, a cursor would be three questions more.
    return dict(_known_by_path(_columns(FileVersion.objects.filter(until=None, file__in=ids.values()))))


def _columns(versions: QuerySet[FileVersion]) -> QuerySet[FileVersion, tuple[Any, ...]]:
    return versions.values_list("file__path", "file__raw_path", "pk", "file_id", "mode", "blob", "size", "sha256")


def _known_by_path(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[bytes, _Known]]:
    for path, raw, pk, file_id, mode, blob, size, sha256 in rows:
        yield GitPath.of_row(path, raw).raw, _Known(pk, file_id, mode, blob, size, bytes(sha256))


def _digests(
    repository: Repository, changes: Packed[_Change], blobs: Blobs, on_progress: Callable[[int, int], None]
) -> Iterator[Digest]:
    """One for each change, in their order. A content is read from git once, and only if it was never seen before."""
    seen = FileVersion.objects.filter(repository__clone_key=repository.clone_key).exclude(sha256=b"")
    if not repository.sequence and not seen.exists():
        seen = seen.none()
    total, repeated = _total_and_repeated(change.blob for batch in changes for change in batch if change.blob)
    remembered: dict[str, Digest] = {}
    done = 0
    for batch in changes:
        wanted = list(dict.fromkeys(change.blob for change in batch if change.blob))
        found = {blob: remembered[blob] for blob in wanted if blob in remembered}
        in_manifest = seen.filter(blob__in=wanted).values_list("blob", "sha256", "size")
        found |= {blob: Digest(bytes(sha256), size) for blob, sha256, size in in_manifest}
        unseen = [blob for blob in wanted if blob not in found]
        for number, (blob, digest) in enumerate(blobs.digests(unseen, largest=settings.MAX_FILE_BYTES), done + 1):
            found[blob] = digest
            on_progress(number, total)
        remembered |= {blob: found[blob] for blob in wanted if blob in repeated}
        done += sum(bool(change.blob) for change in batch)
        yield from (found[change.blob] if change.blob else _NO_DIGEST for change in batch)


def _total_and_repeated(blobs: Iterable[str]) -> tuple[int, set[str]]:
    """How many there are, and those that occur more than once: only their digests are remembered."""
    ordered = sorted(blobs)
    return len(ordered), {blob for blob, following in pairwise(ordered) if blob == following}


def _store(
    repository: Repository, last: Snapshot | None, snapshot: Snapshot, fence: int, changes: Iterable[_Digested]
) -> None:
    snapshot.repository = repository
    snapshot.sequence = repository.sequence + 1
    snapshot.files, snapshot.bytes = (last.files, last.bytes) if last else (0, 0)
    left_out_before: list[dict[str, Any]] = last.left_out if last else []
    left_out: list[dict[str, Any]] = []
    for batch in changes:
        _store_versions(repository, snapshot.sequence, batch)
        _count(snapshot, batch)
        left_out_before = _untouched(left_out_before, batch)
        left_out = (left_out + list(_left_out(batch)))[:_MOST_LEFT_OUT]
    if snapshot.files > settings.MAX_REPOSITORY_FILES:
        raise TooLarge(f"The repository exceeds the limit of {settings.MAX_REPOSITORY_FILES} files.")
    snapshot.left_out = (left_out_before + left_out)[:_MOST_LEFT_OUT]
    snapshot.save()
    Repository.objects.filter(pk=repository.pk).update(
        sequence=snapshot.sequence,
        commit_sha=snapshot.commit_sha,
        branch=snapshot.branch,
        fence=fence,
        needs_repair=False,
    )


def _store_versions(repository: Repository, sequence: int, batch: _Digested) -> None:
    if ended := [change.version_id for change, _ in batch if change.version_id]:
        FileVersion.objects.filter(pk__in=ended).update(until=sequence)
    present = [(change, digest) for change, digest in batch if change.blob]
    file_ids = _file_ids(repository, [change.path for change, _ in present if not change.file_id])
    rows.insert(
        FileVersion,
        ("repository", "file", "blob", "mode", "size", "sha256", "since"),
        [
            (
                *(repository.pk, change.file_id or file_ids[change.path]),
                *(change.blob, change.mode, digest.size, digest.sha256, sequence),
            )
            for change, digest in present
        ],
    )


def _count(snapshot: Snapshot, batch: _Digested) -> None:
    """From the snapshot before and the changes: counting all files would cost what the repository is large."""
    for change, digest in batch:
        had, has = bool(change.had_sha256), bool(digest.sha256)
        snapshot.created += has and not had
        snapshot.updated += has and had
        snapshot.deleted += had and not change.blob
        snapshot.files += has - had
        snapshot.bytes += (digest.size if has else 0) - (change.had_size if had else 0)


def _untouched(left_out: list[dict[str, Any]], batch: _Digested) -> list[dict[str, Any]]:
    if not left_out:
        return []
    touched = {GitPath(change.path).text for change, _ in batch}
    return [item for item in left_out if item["path"] not in touched]


def _left_out(batch: _Digested) -> Iterator[dict[str, Any]]:
    for change, digest in batch:
        if change.mode == trees.SUBMODULE:
            yield {"path": GitPath(change.path).text, "reason": _SUBMODULE}
        elif change.blob and not digest.sha256:
            yield {"path": GitPath(change.path).text, "reason": _TOO_LARGE, "size": digest.size}


def _file_ids(repository: Repository, paths: list[bytes]) -> dict[bytes, int]:
    """The rows of paths that the manifest does not have now; some may have been there earlier."""
    digests = {GitPath(path).digest: path for path in paths}
    ids = _ids_by_path(repository, digests) if repository.sequence else {}
    missing = {digest: path for digest, path in digests.items() if path not in ids}
    if missing:
        new = dict(zip(missing.values(), rows.new_ids(File, len(missing)), strict=True))
        columns = ("id", "repository", "path_digest", "path", "raw_path")
        given = [(new[path], repository.pk, digest, *_texts(path)) for digest, path in missing.items()]
        rows.insert(File, columns, given)
        ids |= new
    return ids


def _ids_by_path(repository: Repository, digests: dict[bytes, bytes]) -> dict[bytes, int]:
    if not digests:
        return {}
    files = File.objects.filter(repository=repository, path_digest__in=list(digests))
    return {digests[bytes(digest)]: pk for digest, pk in files.values_list("path_digest", "pk")}


def _texts(raw: bytes) -> tuple[str, bytes | None]:
    path = GitPath(raw)
    return path.text, None if path.is_text else raw
