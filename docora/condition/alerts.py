"""Tells the operator, by webhook or e-mail, what needs a person: once when it begins, and once when it is over.

Every scheduler looks at each tick, and so does `manage.py tick`. What was told is kept in the database, so it survives
restarts, and the row count of one UPDATE decides which process tells it. It is told at least once: one that is killed
between the answer and the note of it leaves its claim to expire, and another one tells it again, with the same message
id.

Not through the queue: that no worker takes it is one of the things to be told.
"""

import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from smtplib import SMTPException
from typing import Any, Protocol

from django.conf import settings
from django.core.mail import send_mail
from django.db.models import F, Q, QuerySet
from django.utils import timezone
from redis import RedisError

from docora import condition
from docora.models import Alert
from repositories import timing
from snapshots.delivery.payloads import iso, serialise
from snapshots.delivery.webhooks import Message, WebhookClient, id_of

log = logging.getLogger("docora.alerts")

# The longest pause after failed attempts, which grows up to it: a dead endpoint must not hold up every tick.
_LONGEST_PAUSE = 600.0
_CLAIM = timedelta(minutes=2)
_TIMEOUT = 5.0
# The most that one message names; of the others it says how many there are.
_MOST = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What one message tells."""

    began: list[Alert]
    over: list[Alert]

    @property
    def id(self) -> str:
        facts = [*(f"{row.pk}.{row.began_at}" for row in self.began), *(f"{row.pk}.over" for row in self.over)]
        return id_of(" ".join(facts).encode())

    @property
    def title(self) -> str:
        if len(self.began) == 1 and not self.over:
            return f"{self.began[0].subject}: {condition.TITLES[self.began[0].kind]}"
        if len(self.over) == 1 and not self.began:
            return f"{self.over[0].subject}: {condition.TITLES[self.over[0].kind]}, over"
        return ", ".join(f"{len(rows)} {word}" for rows, word in ((self.began, "new"), (self.over, "over")) if rows)

    @property
    def text(self) -> str:
        return "\n".join([*_lines("New", self.began), *_lines("Over", self.over)])

    @property
    def payload(self) -> dict[str, Any]:
        return {
            "event": "alert",
            "text": f"Docora: {self.title}\n{self.text}",  # what chat services show
            "began": [_facts(row) for row in self.began[:_MOST]],
            "over": [_facts(row) for row in self.over[:_MOST]],
            "more": max(0, len(self.began) - _MOST) + max(0, len(self.over) - _MOST),
            "timestamp": iso(timezone.now()),
        }


def _lines(word: str, rows: list[Alert]) -> Iterator[str]:
    for row in rows[:_MOST]:
        yield f"{word}: {row.subject}: {condition.TITLES[row.kind]}. {row.reason}".rstrip()
        if word == "New" and row.hint:
            yield f"     {row.hint}"
    if len(rows) > _MOST:
        yield f"{word}: {len(rows) - _MOST} more"


def _facts(row: Alert) -> dict[str, Any]:
    return {
        "kind": row.kind,
        "subject": row.subject,
        "reason": row.reason,
        "hint": row.hint,
        "since": iso(row.began_at),
        "until": iso(row.ended_at) if row.ended_at else None,
    }


class Channel(Protocol):
    @property
    def name(self) -> str: ...

    def send(self, news: News) -> str:
        """Why it failed; empty if it was accepted."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Sent like the webhooks of apps: the address is checked, and the body signed if there is a key."""

    base_url: str
    key: str
    name: str = "webhook"
    public_id: str = ""
    max_in_flight: int = 1

    @property
    def signing_keys(self) -> list[str]:
        return [self.key] if self.key else []

    def send(self, news: News) -> str:
        with WebhookClient[Message](self, timeout=_TIMEOUT) as client:
            return client.post(Message(event="", id=news.id, body=serialise(news.payload))).error


@dataclass(frozen=True, slots=True)
class Email:
    to: tuple[str, ...]
    name: str = field(default="email", init=False)

    def send(self, news: News) -> str:
        try:
            send_mail(f"Docora: {' '.join(news.title.split())}", news.text, None, list(self.to))
        except (SMTPException, OSError) as error:
            return f"{error}" or type(error).__name__
        return ""


def channels() -> list[Channel]:
    found: list[Channel] = []
    if settings.ALERT_WEBHOOK:
        found.append(Webhook(settings.ALERT_WEBHOOK, settings.ALERT_WEBHOOK_KEY))
    if settings.ALERT_EMAIL:
        found.append(Email(settings.ALERT_EMAIL))
    return found


def check() -> None:
    """Note what has begun and what is over, and tell it."""
    wanted = channels()
    if not wanted:
        return
    concerns, kinds = _concerns()
    for channel in wanted:
        rows = Alert.objects.filter(channel=channel.name)
        _note_beginnings(rows, channel.name, concerns)
        _note_ends(rows.filter(kind__in=kinds), set(concerns))
        _tell(channel, rows)


def check_without_raising() -> None:
    """Before each tick, which must go on. Not after it: a tick fails without Redis, and that is to be told too."""
    try:
        check()
    except Exception:
        log.exception("looking for something to alert the operator of failed; the next try is at the next tick")


def _concerns() -> tuple[dict[str, condition.Concern], set[str]]:
    """The concerns by their keys, and the kinds that could be checked: of the others, none counts as over."""
    found: dict[str, condition.Concern] = {}
    kinds = set()
    for kind, look_for in condition.CONCERNS.items():
        try:
            found |= {concern.key: concern for concern in look_for()}
        except RedisError:
            continue
        kinds.add(kind)
    return found, kinds


def _note_beginnings(rows: "QuerySet[Alert]", channel: str, concerns: dict[str, condition.Concern]) -> None:
    known, now = set(rows.values_list("key", flat=True)), timezone.now()
    new = [
        Alert(
            channel=channel,
            key=concern.key,
            kind=concern.kind,
            subject=concern.subject,
            reason=concern.reason,
            hint=concern.hint,
            due_at=now + _settling(concern.kind),
        )
        for concern in concerns.values()
        if concern.begins and concern.key not in known
    ]
    Alert.objects.bulk_create(new, ignore_conflicts=True)
    # It came back before its end was told: there is nothing to tell.
    rows.filter(key__in=concerns).exclude(ended_at=None).update(ended_at=None, attempts=0)


def _note_ends(rows: "QuerySet[Alert]", keys: set[str]) -> None:
    now = timezone.now()
    gone = [row.pk for row in rows.filter(ended_at=None) if row.key not in keys]
    _unclaimed(rows).filter(pk__in=gone, told_at=None).delete()
    for row in rows.filter(pk__in=gone).exclude(told_at=None):
        rows.filter(pk=row.pk).update(ended_at=now, due_at=now + _settling(row.kind), attempts=0)


def _settling(kind: str) -> timedelta:
    return timedelta(seconds=condition.SETTLING.get(kind, 0))


def _unclaimed(rows: "QuerySet[Alert]") -> "QuerySet[Alert]":
    return rows.filter(Q(claimed_until=None) | Q(claimed_until__lt=timezone.now()))


def _tell(channel: Channel, rows: "QuerySet[Alert]") -> None:
    now, claim = timezone.now(), secrets.token_hex(16)
    is_news = Q(told_at=None, ended_at=None) | Q(told_at__isnull=False, ended_at__isnull=False)
    due = _unclaimed(rows).filter(is_news, due_at__lte=now)
    if not due.exists() or not due.update(claim=claim, claimed_until=now + _CLAIM):
        return
    mine = rows.filter(claim=claim)
    claimed = list(mine.order_by("began_at", "pk"))
    news = News(began=[row for row in claimed if not row.told_at], over=[row for row in claimed if row.told_at])
    if error := channel.send(news):
        attempts = 1 + max(row.attempts for row in claimed)
        pause = min(timing.pause_after(attempts), _LONGEST_PAUSE)
        mine.update(
            claim="", claimed_until=None, attempts=F("attempts") + 1, due_at=timezone.now() + timedelta(seconds=pause)
        )
        log.warning("An alert by %s failed (attempt %d): %s: %s", channel.name, attempts, news.title, error)
        return
    mine.filter(pk__in=[row.pk for row in news.over]).delete()
    mine.update(told_at=timezone.now(), claim="", claimed_until=None, attempts=0)
    log.info("Told the operator by %s: %s", channel.name, news.title)
