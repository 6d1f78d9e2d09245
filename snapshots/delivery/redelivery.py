"""Sending again what an app was sent before, because somebody asked for it.

Nothing is sent from here. Rows are marked, and the next run of the watch sends them like any other change: under the
lock, with access proven, at the newest commit and in order for each path. So an old content can never overtake a newer
one: redelivering an old delivery sends what the path has now. A message that is sent again keeps its id; the messages
of a resync are new ones.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from operator import attrgetter

from django.db import transaction
from django.db.models import F, Max, QuerySet

from repositories import messages, timing, watch_state
from repositories.base import queue
from repositories.errors import EndpointDisabled
from repositories.models import OptionalEvent, Watch
from repositories.selection import EVERYTHING
from repositories.watches import hold_watch
from snapshots import manifest, unsure
from snapshots.changes import Event, count_changes
from snapshots.delivery import completion, notices
from snapshots.delivery.tell import request_delivery
from snapshots.models import HELD, Delivered, Delivery, File, FileVersion, Parked, Snapshot
from snapshots.packed import batches
from snapshots.paths import GitPath

_FILE_EVENTS = [event.value for event in Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a watch is on its way to the newest snapshot."""

    remaining: int
    total: int

    @property
    def done(self) -> int:
        return max(0, self.total - self.remaining)


def redeliver(delivery: Delivery) -> None:
    redeliver_many([delivery])


def redeliver_many(deliveries: Iterable[Delivery]) -> None:
    """Any selection, of any watches; of several deliveries of one path, the newest counts."""
    for _, rows in groupby(sorted(deliveries, key=attrgetter("watch_id", "pk")), attrgetter("watch_id")):
        _redeliver(list(rows))


def redeliver_since(watch: Watch, moment: datetime) -> None:
    """Everything that was attempted since then, as far back as the log goes."""
    attempts = watch.deliveries.filter(attempted_at__gte=moment)
    newest = attempts.order_by().values("path", "event").annotate(newest=Max("pk")).values("newest")
    redeliver_many(watch.deliveries.filter(pk__in=newest).only("watch", "event", "path", "sha256").iterator())


def retry_parked(watch: Watch) -> None:
    """Another attempt at every file that the endpoint refused."""
    _retry_parked(watch, Parked.objects.filter(watch=watch))


def retry_one_parked(parked: Parked) -> None:
    _retry_parked(parked.watch, Parked.objects.filter(pk=parked.pk))


def _retry_parked(watch: Watch, rows: QuerySet[Parked]) -> None:
    with transaction.atomic():
        hold_watch(watch.pk)
        rows.update(again=True)
        _ask_again(watch)


def resync(watch: Watch) -> None:
    """The whole watch again: every file that the app has, with new message ids."""
    with transaction.atomic():
        hold_watch(watch.pk)
        Delivered.objects.filter(HELD, watch=watch).update(again=Event.CREATE)
        Parked.objects.filter(watch=watch).update(again=True)
        # From the beginning: also a file of which the app has nothing, for whatever reason, is told.
        _ask_again(watch, synced_sequence=0, resyncs=F("resyncs") + 1)


def send_again(
    watch: Watch, *, creates: Collection[int], updates: Collection[int], deletes: Mapping[int, bytes]
) -> None:
    """Send these files again, by their ids, as these events. A delete names the content that the app says it has."""
    with transaction.atomic():
        if not hold_watch(watch.pk):
            return
        for event, file_ids in ((Event.CREATE, creates), (Event.UPDATE, updates)):
            for batch in batches(file_ids):
                Delivered.objects.filter(HELD, watch=watch, file__in=batch).update(again=event)
        unsure.ask_for_delete(watch, deletes.items())
        for batch in batches(chain(creates, updates, deletes)):  # also what the endpoint refused before
            Parked.objects.filter(watch=watch, file__in=batch).update(again=True)
        _ask_again(watch)


def retry_now(watch: Watch) -> None:
    """End the pause after a failure, and the rest that the endpoint asked for."""
    with transaction.atomic():
        timing.clear_pauses(watch)
        _request_now(watch)


def progress(watch: Watch) -> Progress:
    watch.refresh_from_db()
    newest = Snapshot.objects.filter(repository=watch.repository_id).order_by("sequence").last()
    if newest is None:
        return Progress(remaining=0, total=0)
    is_behind = watch_state.is_behind(watch, newest.sequence)
    return Progress(
        remaining=count_changes(watch, newest.sequence) if is_behind else 0, total=_count_wanted(watch, newest)
    )


def _count_wanted(watch: Watch, snapshot: Snapshot) -> int:
    selection = watch.selection
    if selection == EVERYTHING:
        return snapshot.files
    files = manifest.contents_at(watch.repository_id, snapshot.sequence).values_list("file__path", "size")
    return sum(selection.takes(path, size) for path, size in files.iterator())


def _redeliver(deliveries: list[Delivery]) -> None:
    watch = Watch.objects.select_related("app").filter(pk=deliveries[0].watch_id).first()
    if watch is None:
        return
    last = {row.path: row for row in deliveries if row.event in _FILE_EVENTS}
    if last:
        with transaction.atomic():
            if not hold_watch(watch.pk):
                return
            for batch in batches(last.items()):
                _mark(watch, dict(batch))
            _ask_again(watch)
    for event in {row.event for row in deliveries}.difference(_FILE_EVENTS):
        _repeat_notice(watch, event)


def _mark(watch: Watch, deliveries: dict[str, Delivery]) -> None:
    # The log has paths as text. The index has the digest of a path's bytes; a byte that is not UTF-8 is %XX in text.
    digests = {path.digest for text in deliveries for path in GitPath.all_shown_as(text)}
    candidates = File.objects.filter(repository=watch.repository_id, path_digest__in=digests)
    files = [file for file in candidates if file.path in deliveries]
    ids = {event: [f.pk for f in files if deliveries[f.path].event == event] for event in Event}
    for event in (Event.CREATE, Event.UPDATE):
        Delivered.objects.filter(HELD, watch=watch, file__in=ids[event]).update(again=event)
    Parked.objects.filter(watch=watch, file__in=[pk for pks in ids.values() for pk in pks]).update(again=True)
    here = FileVersion.objects.filter(file__in=ids[Event.DELETE], until=None).values_list("file_id", flat=True)
    gone = [f for f in files if f.pk in set(ids[Event.DELETE]).difference(here)]
    unsure.ask_for_delete(watch, ((f.pk, bytes.fromhex(deliveries[f.path].sha256)) for f in gone))


def _repeat_notice(watch: Watch, event: str) -> None:
    """Only what is still true is said again."""
    if event == notices.SYNC_FAILED:
        notices.request(notices.Kind.REFUSAL if watch.access_denied_at else notices.Kind.FAILURE, watch)
    elif event == notices.SYNC_RECOVERED:
        notices.request(notices.Kind.RECOVERY, watch)
    elif event == OptionalEvent.SYNC_COMPLETE:
        completion.repeat(watch)


def _ask_again(watch: Watch, **changes: object) -> None:
    """What is marked is told as if it had changed; a run under way stops and compares again."""
    changes |= {"asked_again": True, "generation": F("generation") + 1}
    watch_state.start_over(Watch.objects.filter(pk=watch.pk), **changes)
    _request_now(watch)


def _request_now(watch: Watch) -> None:
    if watch.app.disabled_at:
        raise EndpointDisabled(f"{watch.app.name} is disabled: nothing is sent until it is enabled.")
    transaction.on_commit(lambda: _hurry(watch.pk), robust=True)
    request_delivery(watch)


def _hurry(watch_id: int) -> None:
    """Before the job is requested: a job that waits for the end of its pause would count as requested already."""
    for lane in (queue.DELIVERIES, queue.SLOW_DELIVERIES):
        queue.hurry(lane, messages.delivery_job(watch_id))
