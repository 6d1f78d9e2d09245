"""What an app has, counted from its rows: to check what the watch says, and to put it right."""

from django.db import transaction

from repositories.models import Watch
from snapshots import digests
from snapshots.digests import Holdings
from snapshots.models import HELD, Delivered
from snapshots.paths import GitPath


def recorded(watch: Watch) -> Holdings:
    return Holdings(watch.files, watch.digest)


def counted(watch: Watch) -> Holdings:
    """Every row is read, one by one: for the hourly reconcile, not for a delivery or a page."""
    rows = Delivered.objects.filter(HELD, watch=watch).values_list("file__path", "file__raw_path", "sha256")
    return digests.of_files(
        (GitPath.of_row(path, raw).raw, bytes(sha256)) for path, raw, sha256 in rows.iterator(chunk_size=2000)
    )


def correct(watch: Watch) -> Holdings | None:
    """Write what the rows say; returns what was written there before, if that was something else."""
    with transaction.atomic():
        row = Watch.objects.select_for_update().filter(pk=watch.pk).first()
        if row is None or recorded(row) == (true := counted(row)):
            return None
        Watch.objects.filter(pk=row.pk).update(files=true.files, digest=true.digest)
        return recorded(row)
