"""One run: an app is told one snapshot, with as many requests in flight as it wants, and every answer written down."""

import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from django.conf import settings
from django.db import transaction

from repositories.clones import Blobs
from repositories.errors import DocoraError
from repositories.models import Watch
from snapshots import signing
from snapshots.changes import Change, Event, changes_for
from snapshots.models import Delivered, Delivery, Parked, Snapshot
from snapshots.payloads import Bodies
from snapshots.webhooks import Answer, WebhookClient

_FLUSH_COUNT = 200
_FLUSH_SECONDS = 0.5
_BYTES_IN_FLIGHT = 16 << 20
# Of the 4xx answers, these are about the endpoint or the moment; every other one is about the one file.
_ENDPOINT_STATUS = {401, 403, 404, 405, 407, 408, 410, 425, 429}


class DeliveryFailed(DocoraError):
    """The endpoint cannot be told anything now."""

    code = "delivery-failed"
    retriable = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.error)
        self.retry_after = answer.retry_after


class WatchGone(DocoraError):
    """The app stopped watching while it was being told."""


@dataclass(frozen=True, slots=True)
class _Message:
    change: Change
    id: str
    size: int
    completes: bool


@dataclass(frozen=True, slots=True)
class _Outcome:
    message: _Message
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


class Run:
    def __init__(self, watch: Watch, snapshot: Snapshot, client: WebhookClient, blobs: Blobs) -> None:
        self._watch = watch
        self._snapshot = snapshot
        self._client = client
        self._blobs = blobs
        self._bodies = Bodies(watch.repository, snapshot.commit_sha)
        self._in_flight: dict[Future[Answer], _Message] = {}
        self._bytes_in_flight = 0
        self._outcomes: list[_Outcome] = []
        self._flushed_at = time.monotonic()
        self._failure: Answer | None = None

    def tell_all(self) -> None:
        """Raises DeliveryFailed when the endpoint fails; what was answered until then is recorded all the same."""
        try:
            for _, changes in groupby(changes_for(self._watch, self._snapshot.sequence), attrgetter("event")):
                self._tell_each(changes)
                self._settle(0)
                if self._failure:
                    break
        finally:
            self._flush()
        if self._failure:
            raise DeliveryFailed(self._failure)

    def _tell_each(self, changes: Iterator[Change]) -> None:
        """Changes of one event; a file may only be created where another one has been deleted before."""
        for change in changes:
            if self._failure:
                return
            self._tell(change)

    def _tell(self, change: Change) -> None:
        if change.size > settings.TEXT_CHUNK_THRESHOLD_BYTES:
            self._transfer(change, self._bodies.pieces(change, self._blobs.read(change.blob)))
            return
        bodies = list(self._whole(change))
        if len(bodies) > 1:
            self._transfer(change, iter(bodies))
        else:
            self._settle(self._watch.app.max_in_flight - 1)
            if not self._failure:
                self._submit(change, bodies[0])

    def _whole(self, change: Change) -> Iterator[bytes]:
        if change.event is Event.DELETE:
            return iter([self._bodies.delete(change)])
        return self._bodies.whole(change, b"".join(self._blobs.read(change.blob)))

    def _transfer(self, change: Change, bodies: Iterator[bytes]) -> None:
        """Pieces in order, each acknowledged before the next; what follows a refused one is only read off."""
        self._settle(0)
        body, refused = next(bodies), self._failure is not None
        for following in bodies:
            refused = refused or not self._submit(change, body, piece=True).result().accepted
            body = following
        self._settle(0)
        if not refused:
            self._submit(change, body)

    def _submit(self, change: Change, body: bytes, *, piece: bool = False) -> "Future[Answer]":
        message = _Message(change, _message_id(self._watch, change, body if piece else b""), len(body), not piece)
        future = self._client.post(change.event, body, signing.headers(self._watch.app, message.id, body))
        self._in_flight[future] = message
        self._bytes_in_flight += message.size
        return future

    def _settle(self, most: int) -> None:
        """Wait until at most so many requests, and not too many bytes, are in flight."""
        while len(self._in_flight) > most or self._bytes_in_flight > _BYTES_IN_FLIGHT:
            done, _ = wait(self._in_flight, return_when=FIRST_COMPLETED)
            for future in done:
                self._note(_Outcome(self._in_flight.pop(future), future.result()))
        if len(self._outcomes) >= _FLUSH_COUNT or time.monotonic() - self._flushed_at > _FLUSH_SECONDS:
            self._flush()

    def _note(self, outcome: _Outcome) -> None:
        self._bytes_in_flight -= outcome.message.size
        self._outcomes.append(outcome)
        if not outcome.answer.accepted and not outcome.is_about_the_file:
            self._failure = outcome.answer

    def _flush(self) -> None:
        """Write down what was answered; a kill costs at most what came in since the last time."""
        self._flushed_at = time.monotonic()
        outcomes, self._outcomes = self._outcomes, []
        with transaction.atomic():
            if not Watch.objects.select_for_update().filter(pk=self._watch.pk).exists():
                raise WatchGone
            _record(self._watch, self._snapshot, outcomes)


def _message_id(watch: Watch, change: Change, piece: bytes) -> str:
    """The same for every attempt at one message; a piece belongs to one transfer and so to one attempt."""
    facts = f"{watch.pk}.{change.event}.{change.file_id}.{change.since}.".encode()
    return f"msg_{hashlib.sha256(facts + piece).hexdigest()[:32]}"


def _record(watch: Watch, snapshot: Snapshot, outcomes: list[_Outcome]) -> None:
    acknowledged = [outcome.message.change for outcome in outcomes if outcome.acknowledges]
    refused = [outcome for outcome in outcomes if outcome.is_about_the_file]
    deleted = [change.file_id for change in acknowledged if change.event is Event.DELETE]
    contents = [change for change in acknowledged if change.event is not Event.DELETE]
    Parked.objects.filter(watch=watch, file__in=[change.file_id for change in acknowledged]).delete()
    Delivered.objects.filter(watch=watch, file__in=deleted).delete()
    Delivered.objects.bulk_create(
        [Delivered(watch=watch, file_id=change.file_id, sha256=change.sha256) for change in contents],
        update_conflicts=True,
        unique_fields=["watch", "file"],
        update_fields=["sha256", "delivered_at"],
    )
    Parked.objects.bulk_create(
        [_parked(watch, outcome) for outcome in refused],
        update_conflicts=True,
        unique_fields=["watch", "file"],
        update_fields=["sha256", "reason", "parked_at"],
    )
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
        error=answer.error,
        answer="" if answer.accepted else answer.text,
    )
