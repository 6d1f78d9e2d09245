"""How many files each app has acknowledged, and how many its endpoint has refused, for the lists of watches."""

from collections.abc import Iterable, Sequence

from django.db.models import Count, Exists, OuterRef

from repositories.models import Watch
from snapshots.changes import Event
from snapshots.models import Delivered, Parked

_BATCH = 500


def forget_not_chosen(watch: Watch) -> None:
    """A refused file of which the app has nothing, and that its watch does not choose any more, is not counted."""
    selection = watch.selection
    if not selection.include and not selection.exclude:
        return
    has_a_content = Delivered.objects.filter(watch=watch, file=OuterRef("file"))
    refused = Parked.objects.filter(~Exists(has_a_content), watch=watch).values_list("pk", "file__path")
    ids = [pk for pk, path in refused.iterator() if not selection.takes_path(path)]
    for start in range(0, len(ids), _BATCH):
        Parked.objects.filter(pk__in=ids[start : start + _BATCH]).delete()


def count_parked(watches: Iterable[Watch]) -> dict[int, int]:
    parked = Parked.objects.filter(watch__in=[watch.pk for watch in watches]).order_by()
    return dict(parked.values_list("watch").annotate(Count("pk")))


def count_acknowledged(watches: Sequence[Watch]) -> dict[int, int]:
    """By the watch's id: the files that the app has, less those that are to be told again; only these are counted."""
    asked_again = Delivered.objects.filter(watch__in=[watch.pk for watch in watches], again__isnull=False)
    counted = asked_again.exclude(again=Event.DELETE).order_by().values_list("watch").annotate(Count("pk"))
    found = dict(counted)
    return {watch.pk: watch.files - found.get(watch.pk, 0) for watch in watches}
