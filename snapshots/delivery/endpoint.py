"""The health of an app's endpoint: in which lane it is served, how long to pause, when to give it up."""

import logging
from datetime import timedelta

from django.conf import settings
from django.utils import timezone

from repositories.base import queue
from repositories.base.words import plural
from repositories.models import App, Watch
from snapshots.delivery.webhooks import Answer

log = logging.getLogger("docora.delivery")

_TOO_SLOW = "docora:not-urgent:{}"
_TOO_SLOW_FOR = 600
_URGENT_TIMEOUT = 1.0


def lane_of(app: App) -> str:
    return queue.SLOW_DELIVERIES if app.slow_since else queue.DELIVERIES


def class_of(lane: str) -> str:
    """Of the apps that a lane serves, as they are counted."""
    return "slow" if lane == queue.SLOW_DELIVERIES else "fast"


def may_be_urgent(watch: Watch) -> bool:
    """Not for a first sync, nor for an endpoint that hangs or was lately too slow for the urgent lane."""
    is_quick = not watch.app.slow_since and not queue.connection().exists(_TOO_SLOW.format(watch.app_id))
    return is_quick and watch.synced_sequence > 0


def move_if_slow(app: App, answer: Answer, lane: str) -> bool:
    """Serve the app in a slower lane from now on if it has not answered in time. Says whether it was moved."""
    if not answer.timed_out or lane == queue.SLOW_DELIVERIES:
        return False
    if lane == queue.URGENT:
        _leave_urgent_lane(app)
    else:
        move_to_slow_lane(app, answer.error)
    return True


def _leave_urgent_lane(app: App) -> None:
    """For a while: a message that times out in the urgent lane is sent once more in the ordinary one."""
    queue.connection().set(_TOO_SLOW.format(app.pk), 1, ex=_TOO_SLOW_FOR)


def timeout(lane: str, full: float) -> float:
    """In the fast lanes no endpoint holds a worker for longer than a few seconds; the slow lane has the full time."""
    if lane == queue.URGENT:
        return min(full, settings.SLOW_AFTER, _URGENT_TIMEOUT)
    return full if lane == queue.SLOW_DELIVERIES else min(full, settings.SLOW_AFTER)


def move_to_slow_lane(app: App, reason: str) -> None:
    app.slow_since = timezone.now()
    if App.objects.filter(pk=app.pk, slow_since=None).update(slow_since=app.slow_since):
        log.warning("%s moved to the slow lane: %s", app, reason)


def note_success(app: App, *, slowest: float) -> None:
    """A whole run in time: back to the fast lane. The row is written only where something changes."""
    in_time = slowest < settings.SLOW_AFTER
    changes = {"failing_since": None, "slow_since": None} if in_time else {"failing_since": None}
    if any(getattr(app, field) for field in changes):
        App.objects.filter(pk=app.pk).update(**changes)
        if app.slow_since and in_time:
            log.info("%s answers in time again: back from the slow lane", app)


def note_part(app: App, *, accepted_some: bool) -> None:
    """A run that ended before its end. One accepted message is enough to say that the endpoint works."""
    if accepted_some:
        App.objects.filter(pk=app.pk).exclude(failing_since=None).update(failing_since=None)


def note_failure(app: App, *, accepted_some: bool) -> None:
    """Remembers since when the endpoint has accepted nothing at all."""
    note_part(app, accepted_some=accepted_some)
    if not accepted_some:
        App.objects.filter(pk=app.pk, failing_since=None).update(failing_since=timezone.now())
    app.refresh_from_db(fields=["failing_since"])


def reason_to_disable(app: App, answer: Answer) -> str:
    """Why nothing more is sent to the endpoint; empty: go on sending."""
    if answer.status == 410:
        return "The endpoint answered 410 Gone."
    patience = timedelta(days=settings.ENDPOINT_PATIENCE_DAYS)
    if app.failing_since and app.failing_since < timezone.now() - patience:
        return f"The endpoint has accepted nothing for {plural(patience.days, 'day')}; last: {answer.error}"[:300]
    return ""
