"""The webhook client: many requests at once to one app, every dialled address checked.

No thread of its own: requests move on while the caller waits in `answers`, and stand still while it reads git
or writes to the database. That is faster than two threads that fight for the interpreter, and simpler.
"""

import hashlib
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from django.conf import settings

from repositories.base import outgoing
from snapshots.delivery._posting import Poster, Reply
from snapshots.delivery.signing import Recipient, Signer
from snapshots.models import is_accepted

# The signature may be the reason; 400 may as well be about the message.
_SIGNATURE_REFUSED = {400, 401, 403}
_KEY_REFUSED = {401, 403}
_NOT_NOW = {408, 425, 429}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What is told in one request. `id` is the same for every attempt. Without an event it goes to the base URL."""

    event: str
    id: str
    body: bytes


M = TypeVar("M", bound=Message)


def id_of(facts: bytes) -> str:
    """The id of the message that these facts distinguish from all others: the same for every attempt at it."""
    return f"msg_{hashlib.sha256(facts).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back: a status, or the reason why there is none. `error_class` is for machines."""

    status: int | None
    error: str = ""
    error_class: str = ""
    milliseconds: int
    text: str = ""
    retry_after: float | None = None

    @property
    def accepted(self) -> bool:
        return is_accepted(self.status)

    @property
    def is_refusal(self) -> bool:
        """The endpoint works, and says no."""
        return self.status is not None and 400 <= self.status < 500 and self.status not in _NOT_NOW

    @property
    def timed_out(self) -> bool:
        return self.error_class == "timeout"


class _Clock:
    """Stands still while nobody waits for answers: a wait for the database is no time-out of the peer."""

    def __init__(self) -> None:
        self._stopped_at = time.monotonic()
        self._stood_still = 0.0

    def time(self) -> float:
        return time.monotonic() - self._stood_still

    @contextmanager
    def running(self) -> Iterator[None]:
        self._stood_still += time.monotonic() - self._stopped_at
        try:
            yield
        finally:
            self._stopped_at = time.monotonic()


@dataclass(slots=True, eq=False, kw_only=True)
class _Attempt(Generic[M]):
    """One request that is under way: a message, signed with one of the app's keys."""

    message: M
    began_at: float
    ends_at: float
    key: int
    other_keys: list[int]
    """To sign it with if the signature is refused."""
    earlier: Answer | None = None
    """What the key before this one got."""


class WebhookClient(Generic[M]):
    """Posts to one app."""

    def __init__(self, app: Recipient, *, timeout: float) -> None:
        self._base_url = app.base_url
        self._timeout = timeout
        self._signer = Signer(app)
        self._lanes = app.max_in_flight
        self._clock = _Clock()
        self._waiting: deque[M] = deque()
        # In the order in which they began, and so in which their time is over.
        self._under_way: dict[_Attempt[M], None] = {}
        self._answered: list[tuple[M, Answer]] = []
        # The run looks at an answer that does not accept before more is sent.
        self._has_refusal = False
        self.unanswered = 0
        self.unanswered_bytes = 0

    def __enter__(self) -> Self:
        self._poster = Poster[_Attempt[M]](self._base_url, ca_file=settings.CA_FILE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Requests that are under way are cut off: a run that ends early does not wait for a hanging receiver."""
        self._poster.close()

    def submit(self, message: M) -> None:
        self._waiting.append(message)
        self.unanswered += 1
        self.unanswered_bytes += len(message.body)

    def drop_waiting(self) -> None:
        """Forget what has not been sent yet."""
        while self._waiting:
            self._discount(self._waiting.popleft())

    def answers(self, *, down_to: int = 0, patience: float | None = None) -> list[tuple[M, Answer]]:
        """What was answered since last time, in that order.

        Works until at most so many requests are unanswered, one is not accepted, or patience is over.
        """
        with self._clock.running():
            ends_at = math.inf if patience is None else self._clock.time() + patience
            while self.unanswered > down_to:
                self._fill_lanes()
                self._move_on(ends_at)
                if self._clock.time() >= ends_at or self._has_refusal:
                    break
        answered, self._answered = self._answered, []
        self._has_refusal = False
        return answered

    def post(self, message: M) -> Answer:
        """One message alone, to its answer."""
        self.submit(message)
        [(_, answer)] = self.answers()
        return answer

    def _fill_lanes(self) -> None:
        while self._waiting and len(self._under_way) < self._lanes:
            first, *others = self._signer.alternatives
            self._begin(self._waiting.popleft(), first, others)

    def _begin(self, message: M, key: int, other_keys: list[int], earlier: Answer | None = None) -> None:
        now = self._clock.time()
        attempt = _Attempt(
            message=message,
            began_at=now,
            ends_at=now + self._timeout,
            key=key,
            other_keys=other_keys,
            earlier=earlier,
        )
        url = f"{self._base_url}/{message.event}" if message.event else self._base_url
        headers = self._signer.headers(message.id, message.body, key=key)
        self._under_way[attempt] = None
        try:
            self._poster.begin(attempt, url, headers, message.body)
        except ValueError as error:
            reason = f"{self._base_url} is no URL that can be dialled: {error}"
            self._take(attempt, self._answer(attempt, Reply(status=None, error=reason, error_class="protocol")))

    def _move_on(self, ends_at: float) -> None:
        """Send and receive until something is answered or the time of something is over."""
        oldest = next(iter(self._under_way), None)
        if oldest is None:
            return
        for attempt, reply in self._poster.wait(min(ends_at, oldest.ends_at) - self._clock.time()):
            self._take(attempt, self._answer(attempt, reply))
        now = self._clock.time()
        for attempt in [attempt for attempt in self._under_way if attempt.ends_at <= now]:
            self._poster.give_up(attempt)
            error = f"timed out after {self._timeout:g} s"
            self._take(attempt, self._answer(attempt, Reply(status=None, error=error, error_class="timeout")))

    def _take(self, attempt: _Attempt[M], answer: Answer) -> None:
        del self._under_way[attempt]
        earlier = attempt.earlier
        if earlier and answer.accepted:
            self._signer.preferred = attempt.key
        if earlier and answer.status in _KEY_REFUSED:
            answer = earlier  # it may have been about the message
        if answer.status in _SIGNATURE_REFUSED and attempt.other_keys:
            key, *others = attempt.other_keys
            self._begin(attempt.message, key, others, answer)
        else:
            self._answered.append((attempt.message, answer))
            self._has_refusal |= not answer.accepted
            self._discount(attempt.message)

    def _discount(self, message: M) -> None:
        self.unanswered -= 1
        self.unanswered_bytes -= len(message.body)

    def _answer(self, attempt: _Attempt[M], reply: Reply) -> Answer:
        milliseconds = round((self._clock.time() - attempt.began_at) * 1000)
        if reply.status is None:
            error, kind = _clean(reply.error), reply.error_class
            return Answer(status=None, error=error, error_class=kind, milliseconds=milliseconds)
        text = reply.body.decode(errors="replace").replace("\0", "")  # which PostgreSQL cannot keep
        if is_accepted(reply.status):
            return Answer(status=reply.status, milliseconds=milliseconds, text=text)
        return Answer(
            status=reply.status,
            error=_complaint(reply),
            error_class="status",
            milliseconds=milliseconds,
            text=text,
            retry_after=outgoing.seconds_of(reply.retry_after),
        )


def _complaint(reply: Reply) -> str:
    hint = "; redirects are not followed" if reply.status and 300 <= reply.status < 400 else ""
    return _clean(f"{reply.status} {reply.reason}{hint}")


def _clean(text: str) -> str:
    """What every database keeps: no NUL, and no byte that was no UTF-8."""
    return text[:200].replace("\0", "").encode(errors="replace").decode()
