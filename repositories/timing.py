"""When something is tried again: the next look at a repository, the next attempt at a delivery."""

import random
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from repositories.models import App, Repository, Watch

_LONGEST_PAUSE = 3600.0
# A repository is looked at ten times within the time for which it has been quiet: after a minute every six seconds, if
# MIN_RESCAN_INTERVAL allowed that.
_LOOKS_WITHIN_QUIET_TIME = 10


def pause_after(attempts: int) -> float:
    """Seconds that double up to an hour, and up to a quarter more by chance, so that retries spread out."""
    pause = min(settings.RETRY_BASE_DELAY * 2.0 ** min(attempts - 1, 30), _LONGEST_PAUSE)
    return pause * random.uniform(1, 1.25)  # noqa: S311  spreads the retries, guards nothing


def plan_next_look(repository: Repository, *, last_change: datetime) -> None:
    """Soon, if the repository has changed lately; up to a tenth sooner by chance, so that the looks spread."""
    now = timezone.now()
    quiet = (now - last_change).total_seconds()
    pause = min(max(quiet / _LOOKS_WITHIN_QUIET_TIME, settings.MIN_RESCAN_INTERVAL), settings.RESCAN_INTERVAL)
    pause *= random.uniform(0.9, 1)  # noqa: S311  guards nothing
    rows = Repository.objects.filter(pk=repository.pk)
    rows.update(last_checked_at=now, next_check_at=now + timedelta(seconds=pause))


def claim_due_look(repository: Repository, now: datetime) -> bool:
    """True for one of the schedulers that found it due. A claim whose job gets lost ends after RESCAN_INTERVAL."""
    rows = Repository.objects.filter(pk=repository.pk, next_check_at=repository.next_check_at)
    return bool(rows.update(next_check_at=now + timedelta(seconds=settings.RESCAN_INTERVAL)))


def rest_app(app: App, seconds: float) -> None:
    """Retry-After applies to all watches of the app."""
    until = timezone.now() + timedelta(seconds=seconds)
    App.objects.filter(Q(resting_until=None) | Q(resting_until__lt=until), pk=app.pk).update(resting_until=until)


def seconds_of_rest(app: App) -> float:
    return _seconds_until(app.resting_until)


def seconds_of_pause(watch: Watch) -> float | None:
    """The rest of the watch's own pause, or of its app's rest; None if it may be delivered now."""
    rest = max(_seconds_until(watch.retry_at), seconds_of_rest(watch.app))
    return rest if rest > 0.1 else None


def not_paused(watches: QuerySet[Watch]) -> QuerySet[Watch]:
    now = timezone.now()
    return watches.filter(
        Q(retry_at=None) | Q(retry_at__lte=now), Q(app__resting_until=None) | Q(app__resting_until__lte=now)
    )


def end_pause(watch: Watch) -> None:
    """Of the watch, and of its app as a whole."""
    Watch.objects.filter(pk=watch.pk).update(retry_at=None)
    App.objects.filter(pk=watch.app_id).update(resting_until=None)


def _seconds_until(moment: datetime | None) -> float:
    return max(0.0, (moment - timezone.now()).total_seconds()) if moment else 0.0
