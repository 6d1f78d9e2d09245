"""Notices to apps about a repository as a whole, and the ping that tests an endpoint.

What a notice says is computed when it is sent, from what the app may know: a stale notice is not sent at all, and
no git output, token or URL of another app can be in it.
"""

import logging
import math
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import send_mail
from django.db import IntegrityError, transaction
from django.db.models import QuerySet
from django.utils import timezone

from repositories import accounts, messages, timing
from repositories.base import counters, log_context, queue
from repositories.errors import sentence_for
from repositories.models import App, OptionalEvent, Repository, Watch
from snapshots.delivery import endpoint
from snapshots.delivery.payloads import describe, iso, origin, serialise
from snapshots.delivery.webhooks import Answer, Message, WebhookClient, id_of
from snapshots.models import ACCEPTED, NOT_ACCEPTED, Delivery, Snapshot

log = logging.getLogger("docora.delivery")

SYNC_FAILED = "sync_failed"
SYNC_RECOVERED = OptionalEvent.SYNC_RECOVERED.value
PING = "ping"

# Attempts at a notice while the endpoint fails, which take eight to ten hours; an endpoint that refuses gets fewer.
_ATTEMPTS = 20
# When a notice was requested. Kept for longer than all attempts take at an endpoint that asks for a day before each.
_REQUESTED = "docora:notice-requested:{}:{}"
_REQUESTED_KEPT = 30 * 24 * 3600
# More than the clocks of two hosts: one has noticed the trouble, another may have told the app of it.
_CLOCKS_DIFFER = timedelta(minutes=1)
_REFUSED = "The repository cannot be read with this app's token any more. Nothing is delivered until it can."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Notice:
    event: str
    payload: dict[str, Any]
    # When the trouble began. It makes the message id, so it stays the same until the trouble is over.
    since: datetime

    def message_to(self, watch: Watch) -> Message:
        number = message_id(watch, self.event, iso(self.since))
        return Message(event=self.event, id=number, body=serialise(self.payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of sending a notice: whether that is the end of it, or after how many seconds to try again. Or it is to
    be sent in the slow lane, where the app is now."""

    is_over: bool = False
    pause: float | None = None
    moved: bool = False


def message_id(watch: Watch, event: str, occasion: str) -> str:
    return id_of(f"{watch.pk}.{event}.{occasion}".encode())


class Kind(StrEnum):
    # The circuit of the repository is open.
    FAILURE = "failure"
    # It has closed again.
    RECOVERY = "recovery"
    # The app's own token is refused.
    REFUSAL = "refusal"


def announce_failure(repository_id: int) -> None:
    """The circuit has opened: tell every app that could read the repository until now."""
    for watch in _of_enabled_apps(Watch.objects.filter(repository=repository_id, access_denied_at=None)):
        request(Kind.FAILURE, watch)


def announce_recovery(repository_id: int) -> None:
    """The circuit has closed: tell the apps that want to know."""
    for watch in _of_enabled_apps(Watch.objects.filter(repository=repository_id, access_denied_at=None)):
        if watch.app.wants(SYNC_RECOVERED):
            request(Kind.RECOVERY, watch)


def announce_refusal(watch_id: int) -> None:
    """This app's own token is refused: tell it alone."""
    for watch in _of_enabled_apps(Watch.objects.filter(pk=watch_id)):
        request(Kind.REFUSAL, watch)


def request_missed(watch: Watch) -> None:
    """What went wrong while nothing was sent to the endpoint, and still is so."""
    kind = Kind.REFUSAL if watch.access_denied_at else Kind.FAILURE
    notice = _COMPOSERS[kind](watch)
    if notice and not _attempts_at(notice, watch).filter(ACCEPTED).exists():
        request(kind, watch)


def _attempts_at(notice: _Notice, watch: Watch) -> "QuerySet[Delivery]":
    """The time bounds what is read of the log: it has no index of message ids."""
    attempts = Delivery.objects.filter(watch=watch, attempted_at__gte=notice.since - _CLOCKS_DIFFER)
    return attempts.filter(message_id=notice.message_to(watch).id)


def request(kind: Kind, watch: Watch) -> None:
    if _COMPOSERS[kind](watch):
        now = timezone.now().isoformat()
        queue.connection().set(_REQUESTED.format(kind, watch.pk), now, ex=_REQUESTED_KEPT)
        _request(kind, watch)


def _request(kind: Kind, watch: Watch) -> None:
    messages.send_notice(kind, watch.pk, lane=endpoint.lane_of(watch.app))


def send(kind: Kind, watch_id: int, *, lane: str = queue.SLOW_DELIVERIES) -> float | None:
    """Returns the seconds after which to try again, if it must be."""
    watch = _of_enabled_apps(Watch.objects.filter(pk=watch_id)).first()
    notice = _COMPOSERS[kind](watch) if watch else None
    if watch is None or notice is None:
        return None
    if rest := timing.seconds_of_rest(watch.app):
        return rest
    # Not the runs of the job: most of them may have found that the app rests.
    failed = _attempts_at(notice, watch).filter(NOT_ACCEPTED)
    if requested_at := _requested_at(kind, watch_id):
        failed = failed.filter(attempted_at__gte=requested_at)
    sent = attempt_at(watch, notice.message_to(watch), number=1 + failed.count(), lane=lane)
    if sent.moved:
        _request(kind, watch)
    return sent.pause


def _requested_at(kind: Kind, watch_id: int) -> datetime | None:
    """None if Redis was emptied since: then every attempt counts that has the id of the notice."""
    requested = queue.connection().get(_REQUESTED.format(kind, watch_id))
    return datetime.fromisoformat(requested.decode()) if isinstance(requested, bytes) else None


def attempt_at(watch: Watch, message: Message, *, number: int, lane: str, until_accepted: bool = False) -> Attempt:
    """Attempt `number` at a notice. After 410 Gone the app is disabled, and is told when it is enabled again.

    `until_accepted`: only an endpoint that refuses it is given up.
    """
    facts = {"app": watch.app.public_id, "repository": watch.repository.public_id, "message_id": message.id}
    with log_context.bound(**facts):
        return _attempt(watch, message, number, lane, math.inf if until_accepted else _ATTEMPTS)


def _attempt(watch: Watch, message: Message, number: int, lane: str, most: float) -> Attempt:
    answer = _post(watch.app, message, timeout=endpoint.timeout(lane, settings.NOTICE_TIMEOUT))
    _log(watch, message, answer)
    _count(answer, lane)
    if endpoint.move_if_slow(watch.app, answer, lane):
        return Attempt(moved=True)
    if answer.status == 410:
        accounts.disable_app(watch.app, endpoint.reason_to_disable(watch.app, answer))
        return Attempt()
    endpoint.note_part(watch.app, accepted_some=answer.accepted)
    if answer.retry_after:
        timing.rest_app(watch.app, answer.retry_after)
    if answer.accepted or number >= (settings.MAX_RETRY_ATTEMPTS if answer.is_refusal else most):
        return Attempt(is_over=True)
    return Attempt(pause=max(timing.pause_after(number), answer.retry_after or 0.0))


def ping(app: App) -> Answer:
    """Test the endpoint now, also of a disabled app."""
    payload = {"event": PING, "app_id": app.public_id, "timestamp": iso(timezone.now())}
    message = Message(event=PING, id=f"msg_{secrets.token_hex(16)}", body=serialise(payload))
    return _post(app, message, timeout=settings.NOTICE_TIMEOUT)


def mail_disabled(app: App, *, attempt: int) -> float | None:
    """Tell the app's contact that nothing is sent any more, and why.

    Returns the seconds after which to try again, if it must be.
    """
    if not app.email or app.disabled_at is None:
        return None
    try:
        send_mail(
            subject=f"Docora: webhooks to {app.name} are switched off",
            message=(
                f"Docora sends nothing more to {app.base_url}.\n\n{app.disabled_reason}\n\n"
                "Nothing is lost: once the endpoint works again and the operator enables it, everything that\n"
                "has changed in the meantime is delivered.\n"
            ),
            from_email=None,
            recipient_list=[app.email],
        )
    except (SMTPException, OSError) as error:
        log.warning("Could not write to the contact of %s (attempt %d): %s", app, attempt, error)
        return timing.pause_after(attempt) if attempt < _ATTEMPTS else None
    log.info("Wrote to the contact of %s that its endpoint is disabled", app)
    return None


def _of_enabled_apps(watches: "QuerySet[Watch]") -> "QuerySet[Watch]":
    return watches.filter(app__disabled_at=None).select_related("app", "repository")


def _post(app: App, message: Message, *, timeout: float) -> Answer:
    with WebhookClient[Message](app, timeout=timeout) as client:
        return client.post(message)


def _log(watch: Watch, message: Message, answer: Answer) -> None:
    """Record the attempt, unless the app has stopped watching meanwhile."""
    with suppress(IntegrityError), transaction.atomic():
        Delivery.objects.create(
            watch=watch,
            message_id=message.id,
            event=message.event,
            status=answer.status,
            milliseconds=answer.milliseconds,
            error_class=answer.error_class,
            error=answer.error,
            answer=answer.text,
        )


def _count(answer: Answer, lane: str) -> None:
    app_class = endpoint.class_of(lane)
    with counters.one_run() as counts:
        counts.add(counters.DELIVERIES, app_class, "accepted" if answer.accepted else answer.error_class)
        counts.observe(counters.DELIVERY_SECONDS, answer.milliseconds / 1000, app_class)


def _failure(watch: Watch) -> _Notice | None:
    repository = watch.repository
    if repository.circuit_open_until is None:
        return None
    message = sentence_for(repository.last_error_code, times=repository.consecutive_failures)
    attempts = repository.consecutive_failures
    payload = _failed(watch, message, "open", attempts=attempts, noticed_at=repository.last_checked_at)
    return _Notice(event=SYNC_FAILED, payload=payload, since=_opening(repository))


def _refusal(watch: Watch) -> _Notice | None:
    if watch.access_denied_at is None:
        return None
    payload = _failed(watch, _REFUSED, "closed", attempts=watch.retry_count, noticed_at=watch.access_denied_at)
    return _Notice(event=SYNC_FAILED, payload=payload, since=watch.access_denied_at)


def _recovery(watch: Watch) -> _Notice | None:
    repository = watch.repository
    if repository.circuit_open_until is not None:
        return None
    payload = {
        "event": SYNC_RECOVERED,
        "repository": describe(repository),
        "circuit_breaker": _circuit(repository, "closed"),
        "timestamp": iso(timezone.now()),
        **origin(_branch(watch), repository.last_checked_at),
    }
    return _Notice(event=SYNC_RECOVERED, payload=payload, since=_opening(repository))


def _opening(repository: Repository) -> datetime:
    """When the circuit opened that is open, or was the last to be: probes move `circuit_open_until`, but not this.

    Of one that opened before this was recorded, a time that does not change either.
    """
    return repository.circuit_opened_at or repository.created_at


def _failed(watch: Watch, message: str, circuit: str, *, attempts: int, noticed_at: datetime | None) -> dict[str, Any]:
    return {
        "event": SYNC_FAILED,
        "repository": describe(watch.repository),
        "error": {"type": "git_failure", "message": message},
        "circuit_breaker": _circuit(watch.repository, circuit),
        "retry_count": attempts,
        "timestamp": iso(timezone.now()),
        **origin(_branch(watch), noticed_at),
    }


def _branch(watch: Watch) -> str:
    """At the snapshot that the app has: a newer one may be what only another app's token can read."""
    has = Snapshot.objects.filter(repository=watch.repository_id, sequence=watch.synced_sequence)
    return has.values_list("branch", flat=True).first() or watch.repository.ref


def _circuit(repository: Repository, status: str) -> dict[str, Any]:
    until = repository.circuit_open_until
    return {
        "status": status,
        "consecutive_failures": repository.consecutive_failures,
        "threshold": settings.CIRCUIT_BREAKER_THRESHOLD,
        "cooldown_until": iso(until) if until and status == "open" else None,
    }


_COMPOSERS: dict[Kind, Callable[[Watch], _Notice | None]] = {
    Kind.FAILURE: _failure,
    Kind.RECOVERY: _recovery,
    Kind.REFUSAL: _refusal,
}
