"""One run: an app is told one snapshot, with as many requests in flight as it wants, and every answer written down.

A message counts as under way from the moment when it is handed to the client until its answer is committed.
At most `max_in_flight` requests are open at once, and at most `_Window.size` messages are under way: so many may be
told twice when the worker is killed, and no other. With `max_in_flight` 1 that is one: the answer to each message is
committed before the next one is sent.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain, groupby, islice
from operator import attrgetter

from django.db import connection, transaction

from repositories.clones import Blobs
from repositories.errors import CloneDamaged, DocoraError
from repositories.models import Watch
from repositories.repo_lock import HeldLock
from snapshots.changes import Change, Event, changes_for
from snapshots.models import Delivered, Delivery, Parked, Snapshot
from snapshots.payloads import Bodies
from snapshots.webhooks import Answer, Message, WebhookClient

# How soon a run notices that it must stop, although nothing is answered.
_PULSE = 0.25
_BYTES_UNDER_WAY = 16 << 20
_BATCH = 128
# So many refusals of single files in a row, and not one acceptance, are a fault of the endpoint.
_SUSPICIOUS = 20
# Of the 4xx answers, these are about the endpoint or the moment; every other one is about the one file.
_ENDPOINT_STATUS = {401, 403, 404, 405, 407, 408, 410, 425, 429}


class DeliveryFailed(DocoraError):
    """The endpoint cannot be told anything now."""

    code = "delivery-failed"
    retriable = True

    def __init__(self, answer: Answer, *, accepted_some: bool) -> None:
        super().__init__(answer.error)
        self.answer = answer
        self.accepted_some = accepted_some


class WatchGone(DocoraError):
    """The app stopped watching while it was being told."""


class Outdated(DocoraError):
    """Somebody asked for something else meanwhile: look anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMessage(Message):
    change: Change
    completes: bool


@dataclass(frozen=True, slots=True)
class _Outcome:
    message: FileMessage
    answer: Answer

    @property
    def is_about_the_file(self) -> bool:
        status, event = self.answer.status or 0, self.message.change.event
        if status == 404 and event is Event.DELETE:
            return True  # the app says that it never had the file
        return 400 <= status < 500 and status not in _ENDPOINT_STATUS

    @property
    def acknowledges(self) -> bool:
        return self.answer.accepted and self.message.completes


@dataclass(frozen=True, slots=True)
class _Window:
    """How many messages may be under way, and how many answers are committed together."""

    lanes: int

    @property
    def batch(self) -> int:
        return 1 if self.lanes == 1 else 4 * self.lanes

    @property
    def size(self) -> int:
        return 1 if self.lanes == 1 else 5 * self.lanes

    @property
    def refill_at(self) -> int:
        """So many unanswered keep every lane busy while more is prepared."""
        return 0 if self.lanes == 1 else self.lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of a run: whether the app now has everything, and how long the slowest answer took."""

    everything: bool
    slowest: float


class Run:
    def __init__(
        self,
        watch: Watch,
        snapshot: Snapshot,
        client: "WebhookClient[FileMessage]",
        blobs: Blobs,
        *,
        held: HeldLock,
        budget: float,
    ) -> None:
        self._watch = watch
        self._snapshot = snapshot
        self._client = client
        self._blobs = blobs
        self._held = held
        self._bodies = Bodies(watch.repository, snapshot.commit_sha)
        self._window = _Window(watch.app.max_in_flight)
        self._ends_at = time.monotonic() + budget
        self._recorded_at = time.monotonic()
        self._outcomes: list[_Outcome] = []
        self._refused: list[_Outcome] = []
        self._accepted_some = False
        self._slowest = 0.0
        self._failure: Answer | None = None

    def tell_all(self) -> Told:
        """Raises DeliveryFailed when the endpoint fails; what was answered until then is recorded all the same."""
        everything = True
        try:
            for _, changes in groupby(changes_for(self._watch, self._snapshot.sequence), attrgetter("event")):
                everything = self._tell_each(changes) and everything
                # A file may only be created where another one has been deleted before.
                self._settle()
                if self._failure or not everything:
                    break
        except CloneDamaged:
            self._settle()
            raise
        if self._failure:
            raise DeliveryFailed(self._failure, accepted_some=self._accepted_some)
        self._park()
        return Told(everything=everything, slowest=self._slowest)

    def _tell_each(self, changes: Iterator[Change]) -> bool:
        """Changes of one event; False when time is up and some are left."""
        for change, content in self._with_contents(changes):
            if self._failure or time.monotonic() > self._ends_at:
                return False
            self._tell(change, content)
        return True

    def _with_contents(self, changes: Iterator[Change]) -> Iterator[tuple[Change, Iterator[bytes]]]:
        while batch := list(islice(changes, _BATCH)):
            contents = self._blobs.contents(change.blob for change in batch if change.blob)
            for change in batch:
                yield change, next(contents) if change.blob else iter(())

    def _tell(self, change: Change, content: Iterator[bytes]) -> None:
        bodies = self._bodies.of(change, content)
        body, following = next(bodies), next(bodies, None)
        if following is None:
            self._send(_message(self._watch, change, body))
        else:
            self._transfer(change, chain((body, following), bodies))

    def _transfer(self, change: Change, bodies: Iterator[bytes]) -> None:
        """Pieces in order, each acknowledged before the next."""
        self._settle()
        body = next(bodies)
        for following in bodies:
            if self._failure or not self._send_alone(_message(self._watch, change, body, piece=True)).accepted:
                return
            body = following
        self._send_alone(_message(self._watch, change, body))

    def _send(self, message: FileMessage) -> None:
        while self._client.unanswered + len(self._outcomes) >= self._window.size:
            if len(self._outcomes) >= self._window.batch:
                self._record()
            else:
                self._collect(self._window.refill_at)
        while self._client.unanswered_bytes > _BYTES_UNDER_WAY:
            self._collect(self._client.unanswered - 1)
        if not self._failure:
            self._client.submit(message)

    def _send_alone(self, message: FileMessage) -> Answer:
        self._client.submit(message)
        while self._client.unanswered:
            self._collect(0)
        answer = self._outcomes[-1].answer
        self._record()
        return answer

    def _settle(self) -> None:
        """Wait for all answers and write them down."""
        while self._client.unanswered:
            self._collect(0)
        if self._outcomes:
            self._record()

    def _collect(self, down_to: int) -> None:
        for message, answer in self._client.answers(down_to=down_to, patience=_PULSE):
            self._note(_Outcome(message, answer))
        if time.monotonic() - self._recorded_at > _PULSE and self._client.unanswered:
            self._record()

    def _note(self, outcome: _Outcome) -> None:
        self._outcomes.append(outcome)
        self._slowest = max(self._slowest, outcome.answer.milliseconds / 1000)
        if outcome.answer.accepted:
            self._accepted_some = True
        elif outcome.is_about_the_file:
            self._refused.append(outcome)
            if len(self._refused) >= _SUSPICIOUS and not self._accepted_some:
                self._fail(outcome.answer)
        else:
            self._fail(outcome.answer)

    def _fail(self, answer: Answer) -> None:
        self._failure = self._failure or answer
        self._client.drop_waiting()

    def _record(self) -> None:
        """Commit what was answered, unless the run has no right to go on."""
        self._held.check()
        self._recorded_at = time.monotonic()
        outcomes, self._outcomes = self._outcomes, []
        with transaction.atomic() if outcomes else nullcontext():
            is_current = self._is_current()
            _log(self._watch, self._snapshot, outcomes)
            if is_current:
                _acknowledge(self._watch, [outcome.message.change for outcome in outcomes if outcome.acknowledges])
                if self._accepted_some:
                    self._park()
        if not is_current:
            raise Outdated

    def _is_current(self) -> bool:
        """Reads the row under its lock, so that nobody unwatches or asks for a resync in between."""
        rows = Watch.objects.filter(pk=self._watch.pk)
        if connection.in_atomic_block:
            rows = rows.select_for_update()
        generation = rows.values_list("generation", flat=True).first()
        if generation is None:
            raise WatchGone
        return generation == self._watch.generation

    def _park(self) -> None:
        refused, self._refused = self._refused, []
        Parked.objects.bulk_create(
            [_parked(self._watch, outcome) for outcome in refused],
            update_conflicts=True,
            unique_fields=["watch", "file"],
            update_fields=["sha256", "reason", "parked_at", "again"],
        )


def _message(watch: Watch, change: Change, body: bytes, *, piece: bool = False) -> FileMessage:
    """The id is the same for every attempt; a piece belongs to one transfer and so to one attempt."""
    facts = f"{watch.pk}.{watch.resyncs}.{change.event}.{change.file_id}.{change.since}.".encode()
    digest = hashlib.sha256(facts + body if piece else facts).hexdigest()
    return FileMessage(event=change.event, id=f"msg_{digest[:32]}", body=body, change=change, completes=not piece)


def _acknowledge(watch: Watch, changes: list[Change]) -> None:
    Parked.objects.filter(watch=watch, file__in=[change.file_id for change in changes]).delete()
    Delivered.objects.filter(
        watch=watch, file__in=[change.file_id for change in changes if change.event is Event.DELETE]
    ).delete()
    Delivered.objects.bulk_create(
        [
            Delivered(watch=watch, file_id=change.file_id, sha256=change.sha256)
            for change in changes
            if change.event is not Event.DELETE
        ],
        update_conflicts=True,
        unique_fields=["watch", "file"],
        update_fields=["sha256", "delivered_at", "again"],
    )


def _log(watch: Watch, snapshot: Snapshot, outcomes: list[_Outcome]) -> None:
    Delivery.objects.bulk_create(_attempt(watch, snapshot, outcome) for outcome in outcomes)


def _parked(watch: Watch, outcome: _Outcome) -> Parked:
    change = outcome.message.change
    return Parked(watch=watch, file_id=change.file_id, sha256=change.sha256, reason=outcome.answer.error)


def _attempt(watch: Watch, snapshot: Snapshot, outcome: _Outcome) -> Delivery:
    change, answer = outcome.message.change, outcome.answer
    return Delivery(
        watch=watch,
        message_id=outcome.message.id,
        event=change.event,
        path=change.path.text,
        sha256=change.sha256.hex(),
        commit_sha=snapshot.commit_sha,
        status=answer.status,
        milliseconds=answer.milliseconds,
        error_class=answer.error_class,
        error=answer.error,
        answer=answer.text,
        manual=change.manual,
    )
