"""What a run writes down: every attempt, what the app has acknowledged, and what it has refused.

All of it in one transaction of the caller, which holds the watch's row. Some questions are plain SQL: they are asked
thousands of times in a first sync, and Django takes longer to make them than the database to answer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import orjson
from django.db import connection

from repositories.models import Watch
from snapshots import rows
from snapshots.changes import Change, Event
from snapshots.delivery.webhooks import Answer
from snapshots.digests import Holdings
from snapshots.models import Delivered, Delivery, Parked, Snapshot, is_accepted
from snapshots.steps import Step

# 4xx answers that are about the endpoint or the moment. Every other 4xx is about the one file.
_ENDPOINT_STATUS = {401, 403, 404, 405, 407, 408, 410, 425, 429}
# 4xx answers that are about the file without doubt.
_FILE_STATUS = {409, 413, 415, 422}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a message was answered. Without its body: many answers are kept until they are committed together."""

    message_id: str
    change: Change
    piece: int
    pieces: int
    sent_at: datetime
    transfer: str
    answer: Answer

    @property
    def accepted(self) -> bool:
        return is_accepted(self.answer.status, self.change.event)

    @property
    def is_about_the_file(self) -> bool:
        status = self.answer.status or 0
        return 400 <= status < 500 and status not in _ENDPOINT_STATUS

    @property
    def is_doubtful(self) -> bool:
        return self.answer.status not in _FILE_STATUS

    @property
    def name(self) -> str:
        """As it is counted."""
        if self.accepted:
            return "accepted"
        return "refused" if self.is_about_the_file else self.answer.error_class

    @property
    def acknowledges(self) -> bool:
        """The last piece completes the file."""
        return self.accepted and self.piece == self.pieces


class WatchNow(NamedTuple):
    """The watch's row at this moment, as far as a run must know it."""

    generation: int
    restarts: int
    is_refused: bool
    files: int
    digest: str
    step: str
    has_parked: bool


_COLUMNS = """
"generation", "restarts", "access_denied_at" IS NOT NULL, "files", "digest", "step",
EXISTS (SELECT 1 FROM "snapshots_parked" WHERE "watch_id" = "repositories_watch"."id")
"""
_READ_WATCH = f'SELECT {_COLUMNS} FROM "repositories_watch" WHERE "id" = %s'  # noqa: S608  our own words
# The commit does not wait for PostgreSQL's disk. If its host fails, the answers of the last moment are lost, like those
# of a killed worker, and the messages are sent again.
_NO_WAIT = "set_config('synchronous_commit', 'off', true)"
_LOCK_WATCH = f'SELECT {_COLUMNS}, {_NO_WAIT} FROM "repositories_watch" WHERE "id" = %s FOR UPDATE'  # noqa: S608
_READ_DELIVERED = 'SELECT "file_id", "sha256", "again" FROM "snapshots_delivered" WHERE "watch_id" = %s AND '
_WRITE_WATCH = 'UPDATE "repositories_watch" SET "files" = %s, "digest" = %s, "step" = %s WHERE "id" = %s'


def read_watch(watch_id: int) -> WatchNow | None:
    """None if the watch has ended. In a transaction its row is locked: no unwatch, no resync and no other run can come
    between this look and the write."""
    locks = connection.in_atomic_block and connection.vendor == "postgresql"
    with connection.cursor() as cursor:
        cursor.execute(_LOCK_WATCH if locks else _READ_WATCH, [watch_id])
        row = cursor.fetchone()
    return WatchNow(*row[: len(WatchNow._fields)]) if row else None


def acknowledge(watch: Watch, now: WatchNow, changes: Sequence[Change]) -> None:
    """What the app has from now on. `now` is the locked row; it is written once for all of these answers."""
    if not changes:
        return
    before = _rows_before(watch, changes)
    has = _sum_up(now, changes, before)
    step = Step.of(orjson.loads(now.step)).after(changes)
    with connection.cursor() as cursor:
        cursor.execute(_WRITE_WATCH, [has.files, has.digest, orjson.dumps(step.as_json).decode(), watch.pk])
    if now.has_parked:
        Parked.objects.filter(watch=watch, file__in=[change.file_id for change in changes]).delete()
    if deleted := [change.file_id for change in changes if change.event is Event.DELETE]:
        Delivered.objects.filter(watch=watch, file__in=deleted).delete()
    kept = [change for change in changes if change.event is not Event.DELETE]
    _insert(watch, [change for change in kept if change.file_id not in before])
    _insert(watch, [change for change in kept if change.file_id in before], instead_of=("watch", "file"))


def _insert(watch: Watch, changes: Iterable[Change], *, instead_of: Sequence[str] = ()) -> None:
    """Rows that are known to be new cost PostgreSQL a fifth of those that may replace others."""
    now = rows.now()
    columns = ("watch", "file", "sha256", "delivered_at", "again")
    values = [(watch.pk, change.file_id, change.sha256, now, None) for change in changes]
    rows.insert(Delivered, columns, values, instead_of=instead_of)


def _rows_before(watch: Watch, changes: Sequence[Change]) -> dict[int, tuple[bytes, str | None]]:
    """What the app had of these files, by their ids: the SHA-256, and what it was to be told again."""
    condition, values = rows.among('"file_id"', sorted(change.file_id for change in changes))
    with connection.cursor() as cursor:
        cursor.execute(_READ_DELIVERED + condition, [watch.pk, *values])
        return {file_id: (bytes(sha256), again) for file_id, sha256, again in cursor.fetchall()}


def _sum_up(now: WatchNow, changes: Sequence[Change], before: dict[int, tuple[bytes, str | None]]) -> Holdings:
    """What the app has after these changes, from what its rows say before them.

    Not from what was compared when the run began: two runs that record the same change count it once.
    """
    held = {file_id: sha256 for file_id, (sha256, again) in before.items() if again != Event.DELETE}
    return Holdings(now.files, now.digest).changed(
        plus=((change.path.raw, change.sha256) for change in changes if change.event is not Event.DELETE),
        minus=((change.path.raw, held[change.file_id]) for change in changes if change.file_id in held),
    )


def park(watch: Watch, outcomes: Sequence[Outcome]) -> None:
    now = rows.now()
    columns = ("watch", "file", "sha256", "reason", "parked_at", "again")
    values = [(watch.pk, each.change.file_id, each.change.sha256, each.answer.error, now, False) for each in outcomes]
    rows.insert(Parked, columns, values, instead_of=("watch", "file"))


_LOGGED = (
    *("watch", "message_id", "event", "path", "sha256", "commit_sha"),
    *("piece", "pieces", "sent_at", "transfer", "previous", "manual", "attempted_at"),
    *("status", "milliseconds", "error_class", "error", "answer"),
)


def log_attempts(watch: Watch, snapshot: Snapshot, outcomes: Iterable[Outcome]) -> None:
    now, moment = rows.now(), rows.moments()
    values = [(watch.pk, *_attempt(each, moment(each.sent_at), snapshot, now)) for each in outcomes]
    rows.insert(Delivery, _LOGGED, values)


def _attempt(outcome: Outcome, sent_at: Any, snapshot: Snapshot, now: Any) -> tuple[Any, ...]:
    change, answer = outcome.change, outcome.answer
    return (
        *(outcome.message_id, change.event.value, change.path.text, change.sha256.hex(), snapshot.commit_sha),
        *(
            outcome.piece,
            outcome.pieces,
            sent_at,
            outcome.transfer,
            change.previous if change.event is Event.UPDATE else None,
            change.manual,
            now,
            answer.status,
            answer.milliseconds,
            "" if outcome.accepted else answer.error_class,
            "" if outcome.accepted else answer.error,
            answer.text,
        ),
    )
