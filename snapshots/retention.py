"""What is forgotten after some days, a batch at a time: each is a short transaction, so writers hardly wait for it.

docs/running.md lists all that grows, with its setting and what trims it.
"""

import time
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.db.models import Model, QuerySet
from django.utils import timezone

from snapshots.models import Completion, Delivery

_BATCH = 500


def delete(rows: "QuerySet[Any, Any]", *, seconds: float = float("inf")) -> int:
    """Delete these rows, which nothing refers to, in their order; returns how many. It stops after that many
    seconds, but not before one batch: each call gets further."""
    ends_at, deleted = time.monotonic() + seconds, 0
    while batch := list(rows.values_list("pk", flat=True)[:_BATCH]):
        model: type[Model] = rows.model
        model._default_manager.filter(pk__in=batch).delete()
        deleted += len(batch)
        if len(batch) < _BATCH or time.monotonic() >= ends_at:
            break
    return deleted


def old_deliveries() -> "QuerySet[Delivery]":
    beginning = timezone.now() - timedelta(days=settings.DELIVERY_LOG_DAYS)
    return Delivery.objects.filter(attempted_at__lt=beginning).order_by("attempted_at")


def old_completions() -> "QuerySet[Completion]":
    """Kept as long as the log of deliveries."""
    beginning = timezone.now() - timedelta(days=settings.DELIVERY_LOG_DAYS)
    return Completion.objects.filter(completed_at__lt=beginning).order_by("completed_at")


def ended_sessions() -> "QuerySet[Session]":
    return Session.objects.filter(expire_date__lt=timezone.now()).order_by("expire_date")


def old_actions() -> "QuerySet[LogEntry]":
    """What was done in the admin. Without an index of times: the oldest have the smallest numbers."""
    beginning = timezone.now() - timedelta(days=settings.ADMIN_LOG_DAYS)
    return LogEntry.objects.filter(action_time__lt=beginning).order_by("pk")
