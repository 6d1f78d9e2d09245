"""How many files each app has acknowledged, and how many its endpoint has refused, for the lists of watches."""

from collections.abc import Iterable, Sequence

from django.db.models import Count

from repositories.models import Watch
from snapshots.changes import Event, obsolete_parked_files
from snapshots.models import Delivered, Parked
from snapshots.packed import batches


def delete_obsolete_parked_files(watch: Watch, sequence: int) -> None:
    """To be called once the app has all of this snapshot but what it refuses."""
    if not Parked.objects.filter(watch=watch).exists():
        return
    for batch in batches(obsolete_parked_files(watch, sequence)):
        Parked.objects.filter(watch=watch, file__in=batch).delete()


def count_parked(watches: Iterable[Watch]) -> dict[int, int]:
    parked = Parked.objects.filter(watch__in=[watch.pk for watch in watches]).order_by()
    return dict(parked.values_list("watch").annotate(Count("pk")))


def count_acknowledged(watches: Sequence[Watch]) -> dict[int, int]:
    """By the watch's id: the files that the app has, less those to be told again. Only the latter cost a count."""
    asked_again = Delivered.objects.filter(watch__in=[watch.pk for watch in watches], again__isnull=False)
    counted = asked_again.exclude(again=Event.DELETE).order_by().values_list("watch").annotate(Count("pk"))
    found = dict(counted)
    return {watch.pk: watch.files - found.get(watch.pk, 0) for watch in watches}
