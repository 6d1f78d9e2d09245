"""The circuit breaker of a repository: failures open it; after the cooldown, one probe decides.

Each transition is a function here; no other module writes `circuit_open_until` or `consecutive_failures`. The row count
of one UPDATE names the single winner, so any number of workers announce once and probe once.
"""

import logging
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db.models import F, QuerySet
from django.utils import timezone

from repositories import messages, timing, watch_state
from repositories.errors import DocoraError, HostUnavailable, Moved, RefNotFound
from repositories.models import Repository

log = logging.getLogger("docora.circuit")

_HEALTHY: dict[str, Any] = {
    "consecutive_failures": 0,
    "circuit_open_until": None,
    "last_error_code": "",
    "last_error": "",
}


def claim_look(repository: Repository) -> bool:
    """Whether the caller may look now. While the circuit is open nobody may; after the cooldown the first caller may,
    and the circuit stays open for the others until that probe has succeeded."""
    until = repository.circuit_open_until
    if until is None:
        return True
    now = timezone.now()
    if until > now:
        return False
    return bool(_row(repository).filter(circuit_open_until=until).update(circuit_open_until=now + _cooldown()))


def count_success(repository: Repository) -> None:
    is_open = _row(repository).exclude(circuit_open_until=None)
    if is_open.exists() and is_open.update(**_HEALTHY):
        _announce_closed(repository)
    elif repository.consecutive_failures or repository.last_error:
        _row(repository).update(**_HEALTHY)


def count_failure(repository: Repository, error: DocoraError) -> float | None:
    """Returns the pause before the next attempt; None when the circuit is open and a probe will come by itself."""
    row = _row(repository)
    row.update(consecutive_failures=F("consecutive_failures") + 1, last_error_code=error.code, last_error=str(error))
    failures = row.values_list("consecutive_failures", flat=True).first() or 0
    watch_state.note_repository_failure(repository.watches.all(), error, failures=failures)
    if failures < settings.CIRCUIT_BREAKER_THRESHOLD and error.retriable:
        log.warning("Looking at %s failed (%d in a row): %s", repository, failures, error)
        return timing.pause_after(failures)
    until = timezone.now() + _cooldown()
    # A probe that fails finds the circuit open already, so apps are told once for all failures of one outage.
    if row.filter(circuit_open_until=None).update(circuit_open_until=until):
        log.warning("Circuit of %s opened until %s: %s", repository, until.isoformat(timespec="seconds"), error)
        messages.announce_failure(repository.pk)
    row.update(next_check_at=F("circuit_open_until"))
    return None


def reset(repository: Repository) -> None:
    """Somebody asks to forget the failures."""
    was_open = _row(repository).exclude(circuit_open_until=None).exists()
    _row(repository).update(**_HEALTHY)
    if was_open:
        _announce_closed(repository)


def skip_cooldown(repository: Repository) -> None:
    """The next look at a repository whose circuit is open is its probe."""
    now = timezone.now()
    _row(repository).filter(circuit_open_until__gt=now).update(circuit_open_until=now)


def note_sighting(repository: Repository) -> None:
    """The remote has just answered: if the circuit is open because it did not, the next look is the probe."""
    unseen = _row(repository).filter(last_error_code__in=[HostUnavailable.code, RefNotFound.code, Moved.code])
    unseen.exclude(circuit_open_until=None).update(circuit_open_until=timezone.now())


def _announce_closed(repository: Repository) -> None:
    log.info("Circuit of %s closed", repository)
    messages.announce_recovery(repository.pk)


def _row(repository: Repository) -> QuerySet[Repository]:
    return Repository.objects.filter(pk=repository.pk)


def _cooldown() -> timedelta:
    return timedelta(seconds=settings.CIRCUIT_BREAKER_COOLDOWN)
