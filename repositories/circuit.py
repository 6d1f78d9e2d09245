"""The circuit breaker of a repository: failures open it; after the cooldown, one probe decides.

A host that did not answer is probed before the cooldown is over, because asking costs nothing: after 30 s, then after
pauses that grow. A repository that failed while it was fetched waits for the end of the cooldown: each probe of it may
be a download.

Each transition is a function here; no other module writes these columns. The row count of one UPDATE names the single
winner, so any number of workers announce once and probe once.
"""

import logging
import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, QuerySet
from django.utils import timezone

from repositories import messages, timing, watch_state
from repositories.errors import DocoraError, HostUnavailable, Moved, RefNotFound
from repositories.models import Repository

log = logging.getLogger("docora.circuit")

# Seconds between two questions to a host that does not answer; then as long as the cooldown.
_PROBE_PAUSES = (30, 60, 120, 300, 600)
# When a host answers again, this many of its other repositories are asked at once, and as many for each success.
_PROBED_TOGETHER = 5

_HEALTHY: dict[str, Any] = {
    "consecutive_failures": 0,
    "circuit_open_until": None,
    "probe_at": None,
    "last_error_code": "",
    "last_error": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The look that one caller may take: for a probe, the columns of the circuit before it was claimed, and since."""

    repository_id: int
    before: dict[str, Any] = field(default_factory=dict)
    since: dict[str, Any] = field(default_factory=dict)

    def give_back(self) -> None:
        """The caller could not look: the next one may probe instead, unless something has changed meanwhile."""
        if self.since:
            Repository.objects.filter(pk=self.repository_id, **self.since).update(**self.before)


def claim_look(repository: Repository) -> Claim | None:
    """None if the caller may not look now. While the circuit is open nobody may. When a probe is due the first caller
    may, and the circuit stays open for the others until that probe has succeeded."""
    until, probe_at = repository.circuit_open_until, repository.probe_at
    if until is None:
        return Claim(repository_id=repository.pk)
    now = timezone.now()
    if until > now and (probe_at is None or probe_at > now):
        return None
    before = {"circuit_open_until": until, "probe_at": probe_at}
    if until <= now:
        since = {"circuit_open_until": now + _cooldown(), "probe_at": None}
    else:  # the next probe is planned before this one, in case its worker dies
        since = {"circuit_open_until": until, "probe_at": now + timedelta(seconds=_PROBE_PAUSES[0])}
    is_claimed = _row(repository).filter(**before).update(**since)
    return Claim(repository_id=repository.pk, before=before, since=since) if is_claimed else None


def count_success(repository: Repository) -> None:
    is_open = _row(repository).exclude(circuit_open_until=None)
    if is_open.exists() and is_open.update(**_HEALTHY):
        _announce_closed(repository)
        _probe_neighbours(repository)
        # Hints that came while it was open were answered without a look, and the probe may have looked before them.
        messages.take_snapshot(repository.pk, planned=True)
    elif repository.consecutive_failures or repository.last_error:
        _row(repository).update(**_HEALTHY)


def count_failure(repository: Repository, error: DocoraError, *, while_fetching: bool = False) -> float | None:
    """Returns the seconds before the next attempt or probe; None if the scheduler asks for it after the cooldown."""
    row = _row(repository)
    row.update(consecutive_failures=F("consecutive_failures") + 1, last_error_code=error.code, last_error=str(error))
    failures = row.values_list("consecutive_failures", flat=True).first() or 0
    watch_state.note_repository_failure(repository.watches.all(), error, failures=failures)
    if failures < settings.CIRCUIT_BREAKER_THRESHOLD and error.retriable:
        log.warning("Looking at %s failed (%d in a row): %s", repository, failures, error)
        return timing.pause_after(failures)
    now = timezone.now()
    until = now + _cooldown()
    # A probe that fails finds the circuit open already, so apps are told once for all failures of one outage.
    if row.filter(circuit_open_until=None).update(circuit_open_until=until, circuit_opened_at=now):
        log.warning("Circuit of %s opened until %s: %s", repository, until.isoformat(timespec="seconds"), error)
        messages.announce_failure(repository.pk)
    if while_fetching or not isinstance(error, HostUnavailable):
        # Not if somebody has just closed it, and asked for a look.
        row.exclude(circuit_open_until=None).update(next_check_at=F("circuit_open_until"))
        return None
    pause = _pause_before_probe(failures - settings.CIRCUIT_BREAKER_THRESHOLD)
    probe_at = timezone.now() + timedelta(seconds=pause)
    # Also for the scheduler, in case the job that returns with this pause is lost.
    row.update(probe_at=probe_at, next_check_at=probe_at)
    return pause


def _pause_before_probe(failed_probes: int) -> float:
    pause = _PROBE_PAUSES[failed_probes] if failed_probes < len(_PROBE_PAUSES) else math.inf
    return min(pause, settings.CIRCUIT_BREAKER_COOLDOWN)


def _probe_neighbours(repository: Repository) -> None:
    """The host answers again: ask a few of its other repositories now. Each that succeeds brings a few more."""
    host = f"{repository.remote.base}/"
    waiting = Repository.objects.filter(url__startswith=host, probe_at__gt=timezone.now()).order_by("probe_at")
    for neighbour in waiting[:_PROBED_TOGETHER]:
        Repository.objects.filter(pk=neighbour.pk, probe_at=neighbour.probe_at).update(probe_at=timezone.now())
        messages.take_snapshot(neighbour.pk, planned=True)


def next_probe(repository: Repository) -> datetime | None:
    """When an open circuit is probed; nothing while it is closed."""
    return repository.probe_at or repository.circuit_open_until


def reset(repository: Repository) -> None:
    """Forget the failures, because somebody asked for it."""
    was_open = _row(repository).exclude(circuit_open_until=None).exists()
    _row(repository).update(**_HEALTHY)
    if was_open:
        _announce_closed(repository)


def skip_cooldown(repository: Repository) -> None:
    """The next look at a repository whose circuit is open is its probe."""
    now = timezone.now()
    _row(repository).filter(circuit_open_until__gt=now).update(circuit_open_until=now, probe_at=None)


def note_sighting(repository: Repository) -> None:
    """The remote has just answered: if the circuit is open because it did not, the next look is the probe."""
    unseen = _row(repository).filter(last_error_code__in=[HostUnavailable.code, RefNotFound.code, Moved.code])
    unseen.exclude(circuit_open_until=None).update(circuit_open_until=timezone.now(), probe_at=None)


def _announce_closed(repository: Repository) -> None:
    log.info("Circuit of %s closed", repository)
    messages.announce_recovery(repository.pk)


def _row(repository: Repository) -> QuerySet[Repository]:
    return Repository.objects.filter(pk=repository.pk)


def _cooldown() -> timedelta:
    return timedelta(seconds=settings.CIRCUIT_BREAKER_COOLDOWN)
