"""How far back what a repository contained stays known: some days.

An app that has taken nothing for longer lacks what nobody knows any more. It is compared file by file with what it has,
as after a change of its filters, and is told the difference.
"""

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from repositories import watch_state
from repositories.models import Repository
from snapshots import retention, unsure
from snapshots.models import Delivered, File, FileVersion, Parked, Snapshot

_BATCH = 500


def oldest_kept(repository: Repository) -> int:
    """The number of the oldest snapshot that stays readable: the newest one at the beginning of the history."""
    beginning = timezone.now() - timedelta(days=settings.HISTORY_DAYS)
    before = Snapshot.objects.filter(repository=repository, taken_at__lte=beginning).order_by("sequence").last()
    return int(before.sequence) if before else 0


def count_old(repository: Repository) -> int:
    return _snapshots_before(repository, oldest_kept(repository)).count()


def prune(repository: Repository) -> None:
    """Forget what is older than the history. The current files are never touched, nor what an app has."""
    oldest = oldest_kept(repository)
    _mark_what_apps_may_have(repository, oldest)
    # Before the versions: a delivery under way that counts on those to be deleted must not be taken for complete.
    watch_state.compare_anew(repository.watches.filter(synced_sequence__gt=0, synced_sequence__lt=oldest))
    ended = FileVersion.objects.filter(repository=repository, until__lte=oldest)
    retention.delete(ended)
    _forget_files(repository)
    retention.delete(_snapshots_before(repository, oldest))


def _mark_what_apps_may_have(repository: Repository, oldest: int) -> None:
    """While it is known what the snapshots had that were begun and not told to their end."""
    begun = repository.watches.filter(begun_sequence__gt=0, begun_sequence__lt=oldest)
    for watch in begun:
        unsure.mark(watch, oldest)
        begun.filter(pk=watch.pk).update(begun_sequence=oldest)


def _forget_files(repository: Repository) -> None:
    """Paths that are in no version and with no app."""
    unused = File.objects.filter(
        *(~Exists(model.objects.filter(file=OuterRef("pk"))) for model in (FileVersion, Delivered, Parked)),
        repository=repository,
    )
    deleted = _BATCH
    while deleted == _BATCH:
        with transaction.atomic():
            # A snapshot that is being written may be about to give one of them a version: it waits, or we do.
            Repository.objects.select_for_update(no_key=True).filter(pk=repository.pk).first()
            batch = list(unused.values_list("pk", flat=True)[:_BATCH])
            File.objects.filter(pk__in=batch)._raw_delete("default")
            deleted = len(batch)


def _snapshots_before(repository: Repository, sequence: int) -> QuerySet[Snapshot]:
    return Snapshot.objects.filter(repository=repository, sequence__lt=sequence)
