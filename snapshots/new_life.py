"""What a restored database needs before the service may go on with it.

The rows are those of an earlier time. Since then apps were told things of which the rows know nothing, under numbers
that the service would give out a second time. So:

- Nothing is told before a fresh look: what the rows call the newest commit may be older than what the apps have.
- Everything is told again, to every app: what the rows call acknowledged may have been replaced since.
- No number is given out twice. Message ids derive from the ids of watches and files, from `resyncs` and from the
  numbers of snapshots, and receivers drop a message whose id they know. Cursors of the change feed name snapshots.

Not found: a file that was created and told after the backup and is gone from the repository by now. No row names it.
"""

from datetime import UTC, datetime, timedelta

from django.apps import apps
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.db.models import F, Value
from django.db.models.functions import Greatest
from django.utils import timezone

from repositories import watch_state
from repositories.models import Repository, Watch
from snapshots.changes import Event
from snapshots.models import HELD, Delivered, FileVersion, Parked, Snapshot

_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def begin() -> None:
    """To be called while nothing of the service runs; doing it twice does no harm."""
    elapsed = timezone.now() - _BEGINNING
    # Beyond every number that was counted up from 0 or from an earlier restore: watches are not made a thousand times
    # a second, and a repository is not looked at, nor a watch told again, once a second.
    beyond = int(elapsed.total_seconds())
    with transaction.atomic():
        _advance_ids(elapsed // _MILLISECOND)
        for repository in Repository.objects.filter(sequence__gt=0):
            _renumber_newest(repository, max(repository.sequence, beyond) + 1)
        _ask_for_looks()
        _tell_everything_again(beyond)
        # A session that was signed out since the backup must not be valid again.
        Session.objects.all().delete()


def _renumber_newest(repository: Repository, number: int) -> None:
    """The change feed refuses a cursor that names no snapshot, such as each that was given out since the backup."""
    rows = FileVersion.objects.filter(repository=repository)
    rows.filter(until=repository.sequence).update(until=number)
    rows.filter(since=repository.sequence).update(since=number)
    Snapshot.objects.filter(repository=repository, sequence=repository.sequence).update(sequence=number)
    repository.watches.filter(begun_sequence=repository.sequence).update(begun_sequence=number)
    Repository.objects.filter(pk=repository.pk).update(sequence=number)


def _ask_for_looks() -> None:
    """A clone that needs a repair is made anew at its next look, and nothing is told from it before."""
    # No worker is left whose number could be smaller; that of a Redis whose clock is behind the old one's may be.
    Repository.objects.update(needs_repair=True, next_check_at=timezone.now(), fence=0)


def _tell_everything_again(beyond: int) -> None:
    Delivered.objects.filter(HELD).update(again=Event.CREATE)
    Parked.objects.update(again=True)
    again = {
        "asked_again": True,
        "synced_sequence": 0,
        "generation": F("generation") + 1,
        "resyncs": Greatest(F("resyncs"), Value(beyond)) + 1,
    }
    Watch.objects.exclude(app__disabled_at=None).update(**again)
    watch_state.start_over(Watch.objects.filter(app__disabled_at=None), **again)


def _advance_ids(beyond: int) -> None:
    """New rows get ids that no row can have had since the backup."""
    for app in ("repositories", "snapshots"):
        for model in apps.get_app_config(app).get_models():
            _advance(model._meta.db_table, beyond)


def _advance(table: str, beyond: int) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("UPDATE sqlite_sequence SET seq = max(seq, %s) WHERE name = %s", [beyond, table])
            if not cursor.rowcount:
                cursor.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", [table, beyond])
        else:
            cursor.execute("SELECT pg_get_serial_sequence(%s, 'id')", [table])
            cursor.execute(
                "SELECT setval(%s, greatest(nextval(%s), %s))", [(name := cursor.fetchone()[0]), name, beyond]
            )
