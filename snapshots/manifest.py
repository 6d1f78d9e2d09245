"""The manifest: every file of a repository with its SHA-256, at each commit that Docora saw.

Written in one transaction, guarded by the fencing number of the fetch: a worker that was overtaken
while it hashed cannot put an older commit over a newer one.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from django.db import transaction
from django.db.models import Count, Q, QuerySet, Sum

from repositories import clones
from repositories.clones import Digest, Entry
from repositories.models import Repository
from snapshots.models import File, FileVersion, Snapshot
from snapshots.paths import GitPath

log = logging.getLogger("docora.snapshots")

T = TypeVar("T")
_BATCH = 500


def at(repository_id: int, sequence: int) -> QuerySet[FileVersion]:
    """The files of snapshot number `sequence`, also when newer snapshots have been taken since."""
    versions = FileVersion.objects.filter(repository_id=repository_id, since__lte=sequence)
    return versions.filter(Q(until=None) | Q(until__gt=sequence))


@dataclass(frozen=True, slots=True)
class _Known:
    """A file of the manifest before this snapshot."""

    version_id: int
    file_id: int
    mode: str
    blob: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """What a commit has where it differs from the manifest; None stands for a path that is gone."""

    entries: dict[bytes, Entry | None]
    known: dict[bytes, _Known]
    left_out: list[dict[str, str]]


def write(repository_id: int, commit: str, *, branch: str, fence: int) -> bool:
    """Write down the pinned commit; False if a newer fetch has been written, or the repository is gone."""
    while repository := Repository.objects.filter(pk=repository_id, fence__lt=fence).first():
        difference = _compare(repository, commit)
        digests = _digests(repository, difference)
        with transaction.atomic():
            base = Repository.objects.select_for_update().filter(pk=repository_id, sequence=repository.sequence)
            if base.exists():
                _store(repository, commit, branch, fence, difference, digests)
                return True
    log.info("Dropped the snapshot of repository %s at %s: it was overtaken", repository_id, commit)
    return False


def _compare(repository: Repository, commit: str) -> _Difference:
    """Against the manifest: by git's own comparison of two trees, or in full where the old one is not there."""
    old = repository.commit_sha
    if old and clones.has(repository.clone_key, old):
        found = dict(clones.difference(repository.clone_key, old, commit))
        known = _known(repository, found)
    else:
        known = _known(repository, None)
        found = _changed(known, clones.tree(repository.clone_key, commit))
    submodules = {path for path, entry in found.items() if entry and entry.mode == clones.SUBMODULE}
    entries = {path: None if path in submodules else entry for path, entry in found.items()}
    return _Difference(
        entries={path: entry for path, entry in entries.items() if entry or path in known},
        known=known,
        left_out=_left_out(repository, found, submodules),
    )


def _changed(known: dict[bytes, _Known], entries: Iterable[Entry]) -> dict[bytes, Entry | None]:
    found: dict[bytes, Entry | None] = dict.fromkeys(known)
    for entry in entries:
        old = known.get(entry.path)
        if old and (old.blob, old.mode) == (entry.blob, entry.mode):
            del found[entry.path]
        else:
            found[entry.path] = entry
    return found


def _left_out(repository: Repository, found: Iterable[bytes], submodules: set[bytes]) -> list[dict[str, str]]:
    """What was left out before and is not touched, and what is left out now."""
    touched = {GitPath(path).text for path in found}
    last = Snapshot.objects.filter(repository=repository, sequence=repository.sequence).first()
    kept = [item for item in (last.left_out if last else []) if item["path"] not in touched]
    return kept + [{"path": GitPath(path).text, "reason": "submodule"} for path in sorted(submodules)]


def _known(repository: Repository, paths: Iterable[bytes] | None) -> dict[bytes, _Known]:
    """The manifest's current files by path; all of them, or those of the given paths."""
    current = FileVersion.objects.filter(repository=repository, until=None)
    if paths is None:
        return dict(_load(current))
    known: dict[bytes, _Known] = {}
    for batch in _batches(GitPath(path).digest for path in paths):
        known.update(_load(current.filter(file__path_digest__in=batch, file__repository=repository)))
    return known


def _load(versions: QuerySet[FileVersion]) -> Iterator[tuple[bytes, _Known]]:
    columns = ("file__path", "file__raw_path", "pk", "file_id", "mode", "blob", "size")
    for path, raw, *facts in versions.values_list(*columns).iterator(chunk_size=2000):
        yield (path.encode() if raw is None else bytes(raw)), _Known(*facts)


def _digests(repository: Repository, difference: _Difference) -> dict[str, Digest]:
    """The digest of every content that is new at its path; read from git only if it was never seen before."""
    wanted = {entry.blob for entry in difference.entries.values() if entry}
    digests: dict[str, Digest] = {}
    seen = FileVersion.objects.filter(repository__clone_key=repository.clone_key)
    if seen.exists():
        for batch in _batches(wanted):
            rows = seen.filter(blob__in=batch).values_list("blob", "sha256", "size")
            digests.update((blob, Digest(bytes(sha256), size)) for blob, sha256, size in rows)
    if unseen := wanted.difference(digests):
        with clones.open_blobs(repository.clone_key) as blobs:
            digests.update(blobs.digests(unseen))
    return digests


def _store(
    repository: Repository,
    commit: str,
    branch: str,
    fence: int,
    difference: _Difference,
    digests: dict[str, Digest],
) -> None:
    sequence = repository.sequence + 1
    entries, known = difference.entries, difference.known
    replaced = [known[path] for path in entries if path in known]
    present = {path: entry for path, entry in entries.items() if entry}
    for batch in _batches(old.version_id for old in replaced):
        FileVersion.objects.filter(pk__in=batch).update(until=sequence)
    files = {path: known[path].file_id for path in present if path in known}
    files |= _file_ids(repository, [path for path in present if path not in known])
    for part in _batches(present.items()):
        FileVersion.objects.bulk_create(
            FileVersion(
                repository=repository,
                file_id=files[path],
                blob=entry.blob,
                mode=entry.mode,
                size=digests[entry.blob].size,
                sha256=digests[entry.blob].sha256,
                since=sequence,
            )
            for path, entry in part
        )
    updated = sum(path in known for path in present)
    _number(
        Snapshot(
            repository=repository,
            sequence=sequence,
            commit_sha=commit,
            branch=branch,
            created=len(present) - updated,
            updated=updated,
            deleted=len(entries) - len(present),
            left_out=difference.left_out,
        ),
        fence,
    )


def _number(snapshot: Snapshot, fence: int) -> None:
    repository = snapshot.repository
    totals = at(repository.pk, snapshot.sequence).aggregate(files=Count("pk"), bytes=Sum("size"))
    snapshot.files, snapshot.bytes = totals["files"], totals["bytes"] or 0
    snapshot.save()
    Repository.objects.filter(pk=repository.pk).update(
        sequence=snapshot.sequence,
        commit_sha=snapshot.commit_sha,
        branch=snapshot.branch,
        fence=fence,
        needs_repair=False,
    )


def _file_ids(repository: Repository, paths: list[bytes]) -> dict[bytes, int]:
    """The rows of paths that the manifest does not have now; some may have been there earlier."""
    ids: dict[bytes, int] = {}
    for batch in _batches(paths):
        digests = {GitPath(path).digest: path for path in batch}
        earlier = File.objects.filter(repository=repository, path_digest__in=list(digests))
        ids.update((digests[bytes(digest)], pk) for digest, pk in earlier.values_list("path_digest", "pk"))
        new = [_file(repository, path, digest) for digest, path in digests.items() if path not in ids]
        ids.update((file.git_path.raw, file.pk) for file in File.objects.bulk_create(new))
    return ids


def _file(repository: Repository, raw: bytes, digest: bytes) -> File:
    path = GitPath(raw)
    return File(repository=repository, path_digest=digest, path=path.text, raw_path=None if path.is_text else raw)


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch
