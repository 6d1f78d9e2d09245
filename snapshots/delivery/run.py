"""One run: send one snapshot to one app, with as many requests in flight as the app wants, and record every answer.

A message is under way from the moment when it is handed to the client until its answer is committed. At most
`max_in_flight` requests are open at once, and at most `_Window.size` messages are under way: a killed worker may repeat
that many messages, and no more. With `max_in_flight` 1 the answer to each message is committed before the next one is
sent.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, groupby
from operator import attrgetter

from django.conf import settings
from django.db import transaction

from repositories import watch_state
from repositories.base import counters
from repositories.errors import CloneDamaged, DeliveryFailed
from repositories.git.clones import Blobs
from repositories.models import Watch
from repositories.repo_lock import HeldLock
from snapshots.changes import Change, Event, changes_for
from snapshots.delivery import _recording
from snapshots.delivery._recording import Outcome
from snapshots.delivery.payloads import Bodies, Body, count_pieces
from snapshots.delivery.webhooks import Answer, Message, WebhookClient, id_of
from snapshots.models import Snapshot

log = logging.getLogger("docora.delivery")

# How soon a run notices that it must stop, although nothing is answered.
_PULSE = 0.25
_BYTES_UNDER_WAY = 16 << 20
# A commit costs the database nearly the same, however many answers are in it.
_ANSWERS_IN_A_COMMIT = 128
# After so many refusals that may be about the file, and no acceptance, the endpoint itself is taken to be at fault.
_SUSPICIOUS = 20


class WatchGone(Exception):
    """The app stopped watching while the run was under way."""


class Outdated(Exception):
    """Somebody asked for something else meanwhile, or the host refuses the token: ask and compare again."""


class TakesLong(Exception):
    """One file needs more time than the fast lane has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileMessage(Message):
    change: Change
    # Of a file that goes in pieces: which one this is, from 1, and of how many.
    piece: int = 0
    pieces: int = 0
    # What its body says of this attempt; see Body.
    sent_at: datetime
    transfer: str


@dataclass(frozen=True, slots=True)
class _Window:
    """How many messages may be under way, and how many answers are committed together."""

    lanes: int

    @property
    def batch(self) -> int:
        return 1 if self.lanes == 1 else max(_ANSWERS_IN_A_COMMIT, 4 * self.lanes)

    @property
    def size(self) -> int:
        return 1 if self.lanes == 1 else self.batch + self.lanes

    @property
    def ahead(self) -> int:
        """So many messages may be unanswered. The bodies of more would take memory, and no lane would be busier."""
        return 4 * self.lanes

    @property
    def refill_at(self) -> int:
        """Prepare more messages when so many are left unanswered: enough to keep every lane busy meanwhile."""
        return 0 if self.lanes == 1 else self.lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of a run: whether the app now has everything, and how its endpoint answered.

    `failure` is the answer that stopped the run. What was answered before it is recorded all the same.
    """

    everything: bool
    accepted_some: bool
    made_progress: bool
    slowest: float
    failure: Answer | None
    failed_message: str
    """The id of the message that `failure` answers."""


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
        gives_way: bool,
        counts: counters.Counts,
    ) -> None:
        self._watch = watch
        self._snapshot = snapshot
        self._client = client
        self._blobs = blobs
        self._held = held
        self._bodies = Bodies(watch.repository, snapshot)
        self._window = _Window(watch.app.max_in_flight)
        self._budget = budget
        self._ends_at = time.monotonic() + budget
        self._gives_way = gives_way
        self._counts = counts
        self._app_class = "fast" if gives_way else "slow"
        self._recorded_at = time.monotonic()
        self._outcomes: list[Outcome] = []
        self._refused: list[Outcome] = []
        self._accepted_some = False
        self._made_progress = False
        self._slowest = 0.0
        self._failure: Answer | None = None
        self._failed_message = ""

    def tell_all(self) -> Told:
        everything = True
        try:
            for event, changes in groupby(changes_for(self._watch, self._snapshot.sequence), attrgetter("event")):
                everything = self._tell_each(self._with_contents(event, changes))
                # Deletes are acknowledged before creates begin: a file may take the place of a deleted folder.
                self._settle()
                if self._failure or not everything:
                    break
        except CloneDamaged:
            self._settle()
            raise
        if self._refused and not self._failure:
            self._record(park_all=True)
        return Told(
            everything=everything,
            accepted_some=self._accepted_some,
            made_progress=self._made_progress,
            slowest=self._slowest,
            failure=self._failure,
            failed_message=self._failed_message,
        )

    def _tell_each(self, changes: Iterator[tuple[Change, Iterator[bytes]]]) -> bool:
        """Changes of one event; False when time is up and some are left."""
        for change, content in changes:
            if self._failure or time.monotonic() > self._ends_at:
                return False
            self._tell(change, content)
        return True

    def _with_contents(self, event: Event, changes: Iterator[Change]) -> Iterator[tuple[Change, Iterator[bytes]]]:
        """Git is asked for some contents early; a delete has none."""
        if event is Event.DELETE:
            yield from ((change, iter(())) for change in changes)
            return
        asked: deque[Change] = deque()

        def blobs() -> Iterator[str]:
            for change in changes:
                asked.append(change)
                yield change.blob

        for content in self._blobs.contents(blobs()):
            yield asked.popleft(), content

    def _tell(self, change: Change, content: Iterator[bytes]) -> None:
        bodies = self._bodies.of(change, content)
        body, following = next(bodies), next(bodies, None)
        if following is None:
            self._send(_message(self._watch, change, body))
        else:
            self._transfer(change, chain((body, following), bodies))

    def _transfer(self, change: Change, bodies: Iterator[Body]) -> None:
        """Pieces in order, each acknowledged before the next. In the fast lane the transfer has a time limit."""
        self._settle()
        ends_at = time.monotonic() + self._budget
        for piece, body in enumerate(bodies, 1):
            if self._gives_way and piece > 1 and time.monotonic() > ends_at:
                raise TakesLong(f"{change.path.text} took longer than {self._budget:g} s.")
            if self._failure or not self._send_alone(_message(self._watch, change, body, piece=piece)).accepted:
                return

    def _send(self, message: FileMessage) -> None:
        while self._client.unanswered + len(self._outcomes) >= self._window.size:
            if len(self._outcomes) >= self._window.batch:
                self._record()
            else:
                self._collect(self._window.refill_at)
        while self._client.unanswered >= self._window.ahead:
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
        # A run that was frozen for longer than its lock lives must not send what another one has overtaken.
        self._held.check()
        for message, answer in self._client.answers(down_to=down_to, patience=_PULSE):
            self._note(message, answer)
        if time.monotonic() - self._recorded_at > _PULSE and self._client.unanswered:
            self._record()

    def _note(self, message: FileMessage, answer: Answer) -> None:
        outcome = Outcome(
            message.id, message.change, message.piece, message.pieces, message.sent_at, message.transfer, answer
        )
        self._outcomes.append(outcome)
        seconds = answer.milliseconds / 1000
        self._slowest = max(self._slowest, seconds)
        self._counts.add(counters.DELIVERIES, self._app_class, outcome.name)
        self._counts.observe(counters.DELIVERY_SECONDS, seconds, self._app_class)
        if outcome.accepted:
            self._accepted_some = True
            self._made_progress |= outcome.acknowledges
        elif outcome.is_about_the_file:
            self._refused.append(outcome)
            log.debug("Refused %s: %s", message.change.path.text, answer.error, extra={"message_id": message.id})
            if not self._refusals_are_about_files and sum(o.is_doubtful for o in self._refused) >= _SUSPICIOUS:
                self._fail(outcome)
        else:
            self._fail(outcome)

    @property
    def _refusals_are_about_files(self) -> bool:
        """An endpoint that accepts other files, or that refuses after many attempts, means these files."""
        attempts = watch_state.failures_in_a_row(self._watch, DeliveryFailed.code)
        return self._accepted_some or attempts >= settings.MAX_RETRY_ATTEMPTS

    def _fail(self, outcome: Outcome) -> None:
        if not self._failure:
            self._failure, self._failed_message = outcome.answer, outcome.message_id
        self._client.drop_waiting()

    def _record(self, *, park_all: bool = False) -> None:
        """Commit what was answered. The run ends if the lock is lost, the host refuses the token, or somebody asked for
        something else meanwhile."""
        self._held.check()
        self._recorded_at = time.monotonic()
        outcomes, self._outcomes = self._outcomes, []
        with transaction.atomic() if outcomes or self._refused else nullcontext():
            now = _recording.read_watch(self._watch.pk)
            if now is None:
                raise WatchGone
            is_current = now.generation == self._watch.generation
            goes_on = is_current and now.restarts == self._watch.restarts and not now.is_refused
            # The log keeps every attempt. What the app has is written only for the generation that was compared.
            _recording.log_attempts(self._watch, self._snapshot, outcomes)
            if is_current:
                acknowledged = [outcome.change for outcome in outcomes if outcome.acknowledges]
                if goes_on:
                    self._park(doubtful_too=park_all or self._refusals_are_about_files)
                _recording.acknowledge(self._watch, now, acknowledged)
        if is_current and not goes_on:
            self._await_what_was_sent()
            if not self._failure:
                watch_state.end_delivery(self._watch)
        if not goes_on:
            raise Outdated

    def _await_what_was_sent(self) -> None:
        """Send nothing more, but note the answers to what is under way: the app has it, and is not told it again."""
        self._client.drop_waiting()
        while self._client.unanswered:
            self._held.check()
            for message, answer in self._client.answers(patience=_PULSE):
                self._note(message, answer)
        if self._outcomes:
            self._record()

    def _park(self, *, doubtful_too: bool) -> None:
        parked = [outcome for outcome in self._refused if doubtful_too or not outcome.is_doubtful]
        self._refused = [] if doubtful_too else [outcome for outcome in self._refused if outcome.is_doubtful]
        _recording.park(self._watch, parked)


def lock_key(watch: Watch) -> str:
    """By app and repository, not by watch: a renewed watch must not overtake the run of the old one."""
    return f"delivery:{watch.app_id}:{watch.repository_id}"


def message_id(watch: Watch, change: Change, piece: bytes = b"") -> str:
    facts = f"{watch.pk}.{watch.resyncs}.{change.event}.{change.file_id}.{change.since}.".encode()
    return id_of(facts + piece)


def _message(watch: Watch, change: Change, body: Body, *, piece: int = 0) -> FileMessage:
    """A piece has an id of its own, because each transfer starts anew; the last one, which completes the file, has the
    file's."""
    pieces = count_pieces(change.size) if piece else 0
    return FileMessage(
        event=change.event,
        id=message_id(watch, change, b"" if piece == pieces else body.content),
        body=body.content,
        change=change,
        piece=piece,
        pieces=pieces,
        sent_at=body.at,
        transfer=body.transfer,
    )
