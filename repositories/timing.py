"""When something is tried again: the next look at a repository, the next attempt at a delivery."""

import random
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import Model, Q, QuerySet
from django.utils import timezone

from repositories import hints
from repositories.base import queue
from repositories.models import App, Repository, Watch

M = TypeVar("M", bound=Model)

_LONGEST_PAUSE = 3600.0
# The pause before a look is a tenth of the time since the last change, within the limits of the settings.
_LOOKS_WITHIN_QUIET_TIME = 10
_RESTING_HOST = "docora:resting-host:"


def pause_after(attempts: int) -> float:
    """Seconds that double up to an hour, and up to a quarter more by chance, so that retries spread out."""
    pause = min(settings.RETRY_BASE_DELAY * 2.0 ** min(attempts - 1, 30), _LONGEST_PAUSE)
    return pause * random.uniform(1, 1.25)  # noqa: S311  spreads the retries, guards nothing


def plan_next_look(repository: Repository, *, last_change: datetime) -> None:
    now = timezone.now()
    planned = next_look(now, last_change=last_change, hooked=bool(hints.hooked([repository.pk])))
    Repository.objects.filter(pk=repository.pk).update(last_checked_at=now, next_check_at=planned)


def next_look(now: datetime, *, last_change: datetime, hooked: bool = False) -> datetime:
    """Soon, if the repository has changed lately; up to a tenth sooner by chance, so that the looks spread.

    Where hooks arrive, planned looks only find what a lost hook has missed, and may come more rarely.
    """
    quiet = (now - last_change).total_seconds()
    pause = min(max(quiet / _LOOKS_WITHIN_QUIET_TIME, settings.MIN_RESCAN_INTERVAL), settings.RESCAN_INTERVAL)
    if hooked:
        pause = max(pause, settings.HOOKED_RESCAN_INTERVAL)
    return now + timedelta(seconds=pause * random.uniform(0.9, 1))  # noqa: S311  guards nothing


def claim_due_looks(now: datetime, most: int, *, except_bases: Iterable[str] = ()) -> list[Repository]:
    """Claim those due for longest. Of schedulers that ask at the same time, only one gets each.

    Their `next_check_at` is the end of the claim, after RESCAN_INTERVAL: a look that gets lost is due again then.
    """
    due = Repository.objects.filter(next_check_at__lte=now).order_by("next_check_at")
    for base in except_bases:
        due = due.exclude(url__startswith=f"{base}/")
    if not due.exists():  # reading waits for no lock, writing may
        return []
    end = now + timedelta(seconds=settings.RESCAN_INTERVAL)
    with transaction.atomic():
        claimed = list(due.select_for_update(skip_locked=True)[:most])
        Repository.objects.filter(pk__in=[repository.pk for repository in claimed]).update(next_check_at=end)
    for repository in claimed:
        repository.next_check_at = end
    return claimed


def plan_claimed_looks(plans: Mapping[Repository, datetime], *, checked_at: datetime | None = None) -> None:
    """The next look at each whose claim still holds; the others were planned by another process meanwhile.

    Locked rows are left out, and their claims end by themselves: a transaction that holds many rows waits for none.
    """
    if not plans:
        return
    with transaction.atomic(savepoint=False):
        rows = Repository.objects.select_for_update(skip_locked=True).filter(pk__in=[each.pk for each in plans])
        ends = dict(rows.values_list("pk", "next_check_at"))
        held = [repository for repository in plans if ends.get(repository.pk) == repository.next_check_at]
        for repository in held:
            repository.next_check_at = plans[repository]
            repository.last_checked_at = checked_at or repository.last_checked_at
        Repository.objects.bulk_update(held, ["next_check_at", "last_checked_at"])


def rest_host(base: str, seconds: float) -> None:
    """No planned look at any repository of this host before that, by any scheduler."""
    if seconds > seconds_of_host_rest(base):
        queue.connection().set(_RESTING_HOST + base, 1, px=max(1, round(seconds * 1000)))


def seconds_of_host_rest(base: str) -> float:
    return max(0, queue.connection().pttl(_RESTING_HOST + base)) / 1000


def after_rest(seconds: float) -> datetime:
    """When to look at a repository of a host that rests; by chance, so that not all come at its end."""
    later = random.uniform(0, 0.1) * settings.RESCAN_INTERVAL  # noqa: S311  guards nothing
    return timezone.now() + timedelta(seconds=seconds + later)


def rest_app(app: App, seconds: float) -> None:
    """Retry-After applies to all watches of the app."""
    until = timezone.now() + timedelta(seconds=seconds)
    App.objects.filter(Q(resting_until=None) | Q(resting_until__lt=until), pk=app.pk).update(resting_until=until)


def seconds_of_rest(app: App) -> float:
    return seconds_until(app.resting_until)


def seconds_of_pause(watch: Watch) -> float | None:
    """The rest of the watch's own pause, or of its app's rest; None if it may be delivered now."""
    rest = max(seconds_until(watch.retry_at), seconds_of_rest(watch.app))
    return rest if rest > 0.1 else None


def not_paused(rows: QuerySet[M]) -> QuerySet[M]:
    """Of watches, or of what else has an app and a time for its next attempt."""
    now = timezone.now()
    return rows.filter(
        Q(retry_at=None) | Q(retry_at__lte=now), Q(app__resting_until=None) | Q(app__resting_until__lte=now)
    )


def clear_pauses(watch: Watch) -> None:
    """End the pause of the watch after a failure, and the rest that its app asked for."""
    Watch.objects.filter(pk=watch.pk).update(retry_at=None)
    App.objects.filter(pk=watch.app_id).update(resting_until=None)


def seconds_until(moment: datetime | None) -> float:
    return max(0.0, (moment - timezone.now()).total_seconds()) if moment else 0.0
