"""How far back what a repository contained stays known: as long as an app lacks it, and some days more."""

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.utils import timezone

from repositories.models import Repository
from snapshots import retention
from snapshots.models import Delivered, File, FileVersion, Parked, Snapshot

_BATCH = 500


def oldest_kept(repository: Repository) -> int:
    """The number of the oldest snapshot that stays readable: the newest one at the beginning of the history, or
    an earlier one that an app still has."""
    beginning = timezone.now() - timedelta(days=settings.HISTORY_DAYS)
    before = Snapshot.objects.filter(repository=repository, taken_at__lte=beginning).order_by("sequence").last()
    had = repository.watches.filter(synced_sequence__gt=0).values_list("synced_sequence", flat=True)
    return min([int(before.sequence) if before else 0, *map(int, had)])


def count_old(repository: Repository) -> int:
    return _snapshots_before(repository, oldest_kept(repository)).count()


def prune(repository: Repository) -> None:
    """Forget what no app needs any more. The current files are never touched."""
    oldest = oldest_kept(repository)
    ended = FileVersion.objects.filter(repository=repository, until__lte=oldest)
    retention.delete(ended)
    _forget_files(repository)
    retention.delete(_snapshots_before(repository, oldest))


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
