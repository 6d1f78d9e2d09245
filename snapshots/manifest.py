"""The manifest: every file of a repository with its SHA-256, at each commit that Docora saw.

Written in one transaction, guarded by the fencing number of the fetch: a worker that was overtaken
while it hashed cannot put an older commit over a newer one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice
from typing import Any, TypeVar

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
from snapshots.paths import GitPath

log = logging.getLogger("docora.snapshots")

T = TypeVar("T")
_BATCH = 500
_TOO_LARGE = "too-large"
_MOST_LEFT_OUT = 1000


def at(repository_id: int, sequence: int) -> QuerySet[FileVersion]:
    """The files of snapshot number `sequence`, also when newer snapshots have been taken since."""
    versions = FileVersion.objects.filter(repository_id=repository_id, since__lte=sequence)
    return versions.filter(Q(until=None) | Q(until__gt=sequence))


def contents_at(repository_id: int, sequence: int) -> QuerySet[FileVersion]:
    """Those of them that can be told: not the ones that are too large, which are there without a digest."""
    return at(repository_id, sequence).exclude(sha256=b"")


def content_of(file: File, sequence: int) -> FileVersion | None:
    """One file of them. By its file alone: with the repository, SQLite would go through all that the repository has."""
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


@dataclass(frozen=True, slots=True)
class _Known:
    """A file of the manifest before this snapshot."""

    version_id: int
    file_id: int
    mode: str
    blob: str
    size: int
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """What a commit has where it differs from the manifest, by path; None stands for a path that is gone."""

    entries: dict[bytes, Entry | None]
    known: dict[bytes, _Known]
    submodules: set[bytes]

    @property
    def present(self) -> Iterator[tuple[bytes, Entry]]:
        """By path, because that is the order in which apps are told. One by one: there may be hundreds of thousands."""
        return ((path, entry) for path in sorted(self.entries) if (entry := self.entries[path]))

    @property
    def replaced(self) -> list[_Known]:
        return [self.known[path] for path in self.entries if path in self.known]


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
        with clones.open_blobs(repository.clone_key) as blobs:
            difference = _compare(repository, commit, blobs)
            digests = _digests(repository, difference, blobs, on_progress or _nobody_listens)
        with transaction.atomic():
            base = Repository.objects.select_for_update(no_key=True).filter(
                pk=repository_id, sequence=repository.sequence
            )
            if base.exists():
                snapshot = Snapshot(commit_sha=commit, branch=branch, noticed_at=noticed_at, fetched_at=fetched_at)
                _store(repository, snapshot, fence, difference, digests)
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


def _compare(repository: Repository, commit: str, blobs: Blobs) -> _Difference:
    """Against the manifest: by the trees of the last commit, or in full where that would not do."""
    found, known = _changes_since_last(repository, commit, blobs) or _all_changes(repository, commit, blobs)
    rules = ignore.rules_at(commit, blobs)
    submodules = {path for path, entry in found.items() if entry and entry.mode == trees.SUBMODULE}
    for path in list(found):  # changed in place: a second one of a first snapshot would take megabytes
        shown = None if path in submodules or rules.hide(path) else found[path]
        if shown == _as_entry(path, known.get(path)):
            del found[path]
        else:
            found[path] = shown
    return _Difference(entries=found, known=known, submodules=submodules)


_Found = tuple[dict[bytes, Entry | None], dict[bytes, _Known]]


def _changes_since_last(repository: Repository, commit: str, blobs: Blobs) -> _Found | None:
    """None if the last commit is not there any more, or if something else is ignored or too large now."""
    last = repository.commit_sha
    if not last or not blobs.has(clones.pin_of(last)) or _limit_was_raised(repository):
        return None
    found = dict(trees.differences(blobs, last, commit))
    return None if ignore.RULES in found else (found, _known(repository, found))


def _limit_was_raised(repository: Repository) -> bool:
    snapshots = Snapshot.objects.filter(repository=repository, sequence=repository.sequence)
    left_out = snapshots.values_list("left_out", flat=True).first() or []
    return any(item["reason"] == _TOO_LARGE and item["size"] <= settings.MAX_FILE_BYTES for item in left_out)


def _all_changes(repository: Repository, commit: str, blobs: Blobs) -> _Found:
    known = _known(repository, None) if repository.sequence else {}
    found: dict[bytes, Entry | None] = dict.fromkeys(known)
    found.update((entry.path, entry) for entry in trees.files(blobs, commit))
    return found, known


def _as_entry(path: bytes, known: _Known | None) -> Entry | None:
    """What the manifest has; what was too large and fits now is as good as new."""
    if known is None or (not known.sha256 and known.size <= settings.MAX_FILE_BYTES):
        return None
    return Entry(path, known.mode, known.blob)


def _left_out(last: Snapshot | None, difference: _Difference, digests: dict[str, Digest]) -> list[dict[str, Any]]:
    """What was left out before and is not touched, and what is left out now; the first of them, if they are many."""
    items = last.left_out if last else []
    if items:
        touched = {GitPath(path).text for path in (*difference.entries, *difference.submodules)}
        items = [item for item in items if item["path"] not in touched]
    items = items + [{"path": GitPath(path).text, "reason": "submodule"} for path in sorted(difference.submodules)]
    for path, entry in difference.present:
        if not digests[entry.blob].sha256:
            items.append({"path": GitPath(path).text, "reason": _TOO_LARGE, "size": digests[entry.blob].size})
    return items[:_MOST_LEFT_OUT]


def _known(repository: Repository, paths: Iterable[bytes] | None) -> dict[bytes, _Known]:
    """The manifest's current files by path; all of them, or those of the given paths."""
    current = FileVersion.objects.filter(until=None)
    if paths is None:
        return dict(_load(current.filter(repository=repository)))
    known: dict[bytes, _Known] = {}
    for batch in _batches(paths):
        # Not in one query: PostgreSQL without statistics would join every version of the repository first.
        ids = _ids_by_path(repository, {GitPath(path).digest: path for path in batch})
        known.update(_load(current.filter(file__in=ids.values())))
    return known


def _load(versions: QuerySet[FileVersion]) -> Iterator[tuple[bytes, _Known]]:
    columns = ("file__path", "file__raw_path", "pk", "file_id", "mode", "blob", "size", "sha256")
    for path, raw, pk, file_id, mode, blob, size, sha256 in versions.values_list(*columns).iterator(chunk_size=2000):
        yield (path.encode() if raw is None else bytes(raw)), _Known(pk, file_id, mode, blob, size, bytes(sha256))


def _digests(
    repository: Repository, difference: _Difference, blobs: Blobs, on_progress: Callable[[int, int], None]
) -> dict[str, Digest]:
    """The digest of every content that is new at its path; read from git only if it was never seen before."""
    digests = _seen_before(repository, (entry.blob for _, entry in difference.present))
    unseen = list(dict.fromkeys(entry.blob for _, entry in difference.present if entry.blob not in digests))
    for done, (blob, digest) in enumerate(blobs.digests(unseen, largest=settings.MAX_FILE_BYTES), 1):
        digests[blob] = digest
        on_progress(done, len(unseen))
    return digests


def _seen_before(repository: Repository, wanted: Iterable[str]) -> dict[str, Digest]:
    seen = FileVersion.objects.filter(repository__clone_key=repository.clone_key).exclude(sha256=b"")
    if not seen.exists():
        return {}
    digests: dict[str, Digest] = {}
    for batch in _batches(wanted):
        found = seen.filter(blob__in=batch).values_list("blob", "sha256", "size")
        digests.update((blob, Digest(bytes(sha256), size)) for blob, sha256, size in found)
    return digests


def _store(
    repository: Repository, snapshot: Snapshot, fence: int, difference: _Difference, digests: dict[str, Digest]
) -> None:
    base = Snapshot.objects.filter(repository=repository, sequence=repository.sequence)
    last = base.first() if repository.sequence else None
    snapshot.repository = repository
    snapshot.sequence = repository.sequence + 1
    for batch in _batches(old.version_id for old in difference.replaced):
        FileVersion.objects.filter(pk__in=batch).update(until=snapshot.sequence)
    _store_versions(repository, snapshot.sequence, difference, digests)
    _count(snapshot, last, difference, digests)
    if snapshot.files > settings.MAX_REPOSITORY_FILES:
        raise TooLarge(f"The repository exceeds the limit of {settings.MAX_REPOSITORY_FILES} files.")
    snapshot.left_out = _left_out(last, difference, digests)
    snapshot.save()
    Repository.objects.filter(pk=repository.pk).update(
        sequence=snapshot.sequence,
        commit_sha=snapshot.commit_sha,
        branch=snapshot.branch,
        fence=fence,
        needs_repair=False,
    )


def _store_versions(repository: Repository, sequence: int, difference: _Difference, digests: dict[str, Digest]) -> None:
    known = difference.known
    for part in _batches(difference.present):
        files = {path: known[path].file_id for path, _ in part if path in known}
        files |= _file_ids(repository, [path for path, _ in part if path not in known])
        new = ((files[path], entry, digests[entry.blob]) for path, entry in part)
        rows.insert(
            FileVersion,
            ("repository", "file", "blob", "mode", "size", "sha256", "since"),
            [(repository.pk, file, e.blob, e.mode, digest.size, digest.sha256, sequence) for file, e, digest in new],
        )


def _count(snapshot: Snapshot, last: Snapshot | None, difference: _Difference, digests: dict[str, Digest]) -> None:
    """From the snapshot before and the difference: counting all files would cost what the repository is large."""
    snapshot.files, snapshot.bytes = (last.files, last.bytes) if last else (0, 0)
    for path, entry in difference.entries.items():
        was, now = difference.known.get(path), digests[entry.blob] if entry else None
        had, has = bool(was and was.sha256), bool(now and now.sha256)
        snapshot.created += has and not had
        snapshot.updated += has and had
        snapshot.deleted += had and not entry
        snapshot.files += has - had
        snapshot.bytes += (now.size if now and has else 0) - (was.size if was and had else 0)


def _file_ids(repository: Repository, paths: list[bytes]) -> dict[bytes, int]:
    """The rows of paths that the manifest does not have now; some may have been there earlier."""
    digests = {GitPath(path).digest: path for path in paths}
    ids = _ids_by_path(repository, digests) if repository.sequence else {}
    missing = {digest: path for digest, path in digests.items() if path not in ids}
    if missing:
        columns = ("repository", "path_digest", "path", "raw_path")
        rows.insert(File, columns, [(repository.pk, digest, *_texts(path)) for digest, path in missing.items()])
        ids |= _ids_by_path(repository, missing)
    return ids


def _ids_by_path(repository: Repository, digests: dict[bytes, bytes]) -> dict[bytes, int]:
    if not digests:
        return {}
    files = File.objects.filter(repository=repository, path_digest__in=list(digests))
    return {digests[bytes(digest)]: pk for digest, pk in files.values_list("path_digest", "pk")}


def _texts(raw: bytes) -> tuple[str, bytes | None]:
    path = GitPath(raw)
    return path.text, None if path.is_text else raw


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
