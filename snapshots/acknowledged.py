"""How many files each app has acknowledged, and how many its endpoint has refused, for the lists of watches."""

from collections.abc import Iterable

from django.db.models import Count, Exists, F, OuterRef

from repositories.models import Watch, WatchStatus
from repositories.selection import EVERYTHING
from snapshots.models import Delivered, Parked, Snapshot


def count_parked(watches: Iterable[Watch]) -> dict[int, int]:
    parked = Parked.objects.filter(watch__in=[watch.pk for watch in watches]).order_by()
    return dict(parked.values_list("watch").annotate(Count("pk")))


def count_acknowledged(watches: Iterable[Watch]) -> dict[int, int]:
    """By the watch's id. A synced watch of everything has all files but those that were refused at their creation: that
    costs what was refused. The rows of the others are counted."""
    watches = list(watches)
    whole = [watch for watch in watches if watch.status == WatchStatus.SYNCED and watch.selection == EVERYTHING]
    ids = {watch.pk for watch in whole}
    counted = Delivered.objects.filter(watch__in=[watch.pk for watch in watches if watch.pk not in ids], again=None)
    found = dict(counted.order_by().values_list("watch").annotate(Count("pk")))
    has_another_content = Delivered.objects.filter(watch=OuterRef("watch"), file=OuterRef("file"))
    lacking = Parked.objects.filter(~Exists(has_another_content), watch__in=ids).order_by()
    lacks = dict(lacking.values_list("watch").annotate(Count("pk")))
    files = dict(
        Snapshot.objects.filter(repository__watches__in=ids, sequence=F("repository__watches__synced_sequence"))
        .order_by()
        .values_list("repository__watches", "files")
    )
    found |= {watch.pk: max(0, files.get(watch.pk, 0) - lacks.get(watch.pk, 0)) for watch in whole}
    return {watch.pk: found.get(watch.pk, 0) for watch in watches}
