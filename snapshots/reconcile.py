"""Reconcile: bring disk, rows and refs back to what the watches need, after workers were killed or disks were lost.

Every step checks again under the lock of the clone that it touches, leaves a busy clone to the next round, and can be
repeated at any time.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Min, QuerySet
from django.utils import timezone

from repositories import watch_state
from repositories.base.words import plural
from repositories.errors import GitError, LockTimeoutError
from repositories.git import clones
from repositories.models import Repository, Watch, WatchStatus
from repositories.repo_lock import janitor_lock, repo_lock
from repositories.watches import purge_clone, request_snapshot
from snapshots import history, holdings, retention
from snapshots.models import Snapshot

log = logging.getLogger("docora.reconcile")

# Longer than any delivery may run: no run reads a commit that has not been the newest for so long.
_PIN_AGE = timedelta(hours=6)
_MOST_PACKS = 30


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, and what puts it right."""

    subject: str
    problem: str
    repair: Callable[..., object]


def run(*, job_id: str) -> int:
    """Find and repair everything; returns how many findings were repaired."""
    repaired = 0
    with janitor_lock(job_id=job_id):
        for finding in findings():
            repaired += apply(finding, job_id=job_id)
    return repaired


def apply(finding: Finding, *, job_id: str) -> bool:
    try:
        finding.repair(job_id=job_id)
    except LockTimeoutError:
        log.info("Left %s to the next round: it is in use", finding.subject)
        return False
    except GitError as error:
        log.warning("%s: %s could not be repaired: %s", finding.subject, finding.problem, error)
        return False
    log.info("%s: %s; repaired", finding.subject, finding.problem)
    return True


def findings() -> Iterator[Finding]:
    """Space is freed first, so that there is room for clones that must be made again."""
    known = set(Repository.objects.values_list("clone_key", flat=True))
    on_disk = clones.keys_on_disk()
    yield from _leftovers()
    yield from _unknown_clones(on_disk, known)
    yield from _missing_clones(set(on_disk))
    yield from _unneeded_pins([key for key in on_disk if key in known])
    yield from _old_history()
    yield from _old_rows()
    yield from _wrong_digests()
    yield from _over_quota([key for key in on_disk if key in known])


def _leftovers() -> Iterator[Finding]:
    # A draft may be in use for as long as a job may run.
    for path in clones.leftovers(older_than=2 * settings.GIT_TIMEOUT):
        yield Finding(f"{path.parent.name}/{path.name}", "left by a killed worker", partial(_empty, path))


def _empty(path: Path, *, job_id: str) -> None:
    clones.empty(path)


def _unknown_clones(on_disk: list[str], known: set[str]) -> Iterator[Finding]:
    for key in on_disk:
        if key not in known:
            yield Finding(key, "nobody watches this clone", partial(purge_clone, key))


def _missing_clones(on_disk: set[str]) -> Iterator[Finding]:
    """A missing clone matters only where an app still lacks something; otherwise the next change fetches it."""
    needed = watch_state.behind(Watch.objects.all()).values("repository")
    for repository in Repository.objects.filter(pk__in=needed, needs_repair=False):
        if repository.clone_key not in on_disk:
            yield Finding(str(repository), "its clone is gone", partial(_ask_for_repair, repository))


def _ask_for_repair(repository: Repository, *, job_id: str) -> None:
    Repository.objects.filter(pk=repository.pk).update(needs_repair=True)
    request_snapshot(repository, planned=True)


def _unneeded_pins(keys: list[str]) -> Iterator[Finding]:
    for key in keys:
        try:
            unneeded = _unneeded_commits(key)
        except GitError as error:
            log.warning("The refs of %s cannot be read: %s", key, error)
            continue
        if unneeded or clones.count_packs(key) > _MOST_PACKS:
            problem = f"{len(unneeded)} commits that nobody needs, {clones.count_packs(key)} packs"
            yield Finding(key, problem, partial(_tidy, key))


def _unneeded_commits(clone_key: str) -> set[str]:
    """Pinned long ago and not needed. One that was pinned lately may be that of a snapshot that is being written."""
    lately = (timezone.now() - _PIN_AGE).timestamp()
    return clones.pins(clone_key) - clones.pinned_since(clone_key, lately) - _needed_commits(clone_key)


def _needed_commits(clone_key: str) -> set[str]:
    """The newest commits, and those that a delivery under way may still be reading."""
    current = Repository.objects.filter(clone_key=clone_key).values_list("commit_sha", flat=True)
    lately = timezone.now() - _PIN_AGE
    followed = Snapshot.objects.filter(repository__clone_key=clone_key, taken_at__gt=lately)
    since = followed.values("repository").annotate(first=Min("sequence"))
    needed = set(current)
    for row in since:
        # From the one before the first of them on: it was the newest until then.
        newer = Snapshot.objects.filter(repository=row["repository"], sequence__gte=row["first"] - 1)
        needed.update(newer.values_list("commit_sha", flat=True))
    return needed


def _tidy(clone_key: str, *, job_id: str) -> None:
    with repo_lock(clone_key, job_id=job_id, wait=0) as held:
        unneeded = _unneeded_commits(clone_key)
        if unneeded:
            clones.unpin(clone_key, unneeded, held=held)
        if clones.count_packs(clone_key) > 1:
            clones.pack(clone_key, held=held)


def _old_history() -> Iterator[Finding]:
    for repository in Repository.objects.filter(sequence__gt=1).iterator():
        if count := history.count_old(repository):
            yield Finding(
                str(repository),
                f"{plural(count, 'snapshot')} older than {settings.HISTORY_DAYS} days",
                partial(_forget_history, repository),
            )


def _forget_history(repository: Repository, *, job_id: str) -> None:
    history.prune(repository)


def _wrong_digests() -> Iterator[Finding]:
    """Watches whose digest is not that of their rows. A delivery under way changes both between two reads: left out."""
    for watch in Watch.objects.exclude(status=WatchStatus.SCANNING).select_related("app", "repository"):
        if holdings.recorded(watch) != holdings.counted(watch):
            yield Finding(str(watch), "the digest is not that of its rows", partial(_correct_digest, watch))


def _correct_digest(watch: Watch, *, job_id: str) -> None:
    if before := holdings.correct(watch):
        log.error("The digest of %s was wrong: it stood for %d files (%s)", watch, before.files, before.digest)


def _old_rows() -> Iterator[Finding]:
    """Deliveries are not among them: there may be so many that each tick of the scheduler trims them."""
    for what, rows in (
        ("sessions that have ended", retention.ended_sessions()),
        (f"actions older than {settings.ADMIN_LOG_DAYS} days", retention.old_actions()),
    ):
        if rows.exists():
            yield Finding("The admin", what, partial(_forget, rows))


def _forget(rows: "QuerySet[Any, Any]", *, job_id: str) -> None:
    retention.delete(rows)


def _over_quota(keys: list[str]) -> Iterator[Finding]:
    """The least recently used clones, until the rest fits; never one that a delivery still needs."""
    if not settings.DISK_QUOTA_BYTES:
        return
    usages = sorted((clones.usage(key) for key in keys), key=lambda usage: usage.last_used)
    excess = sum(usage.bytes for usage in usages) - settings.DISK_QUOTA_BYTES
    for usage in usages:
        if excess <= 0:
            return
        if not _is_needed_now(usage.clone_key):
            excess -= usage.bytes
            yield Finding(
                usage.clone_key,
                f"over the quota with {plural(usage.bytes, 'byte')}",
                partial(_evict, usage.clone_key),
            )


def _is_needed_now(clone_key: str) -> bool:
    being_repaired = Repository.objects.filter(clone_key=clone_key, needs_repair=True)
    return being_repaired.exists() or watch_state.behind(Watch.objects.filter(repository__clone_key=clone_key)).exists()


def _evict(clone_key: str, *, job_id: str) -> None:
    with repo_lock(clone_key, job_id=job_id, wait=0) as held:
        trash = None if _is_needed_now(clone_key) else clones.discard(clone_key, held=held)
    if trash:
        clones.empty(trash)
