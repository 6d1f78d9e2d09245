"""The circuit breaker of a repository: failures open it, one probe after the cooldown decides.

The row count of one UPDATE names the single winner, so any number of workers announce once and probe once.
"""

import logging
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from repositories.errors import DocoraError
from repositories.models import Repository, WatchStatus
from snapshots.delivery import notices
from snapshots.reasons import sentence_of

log = logging.getLogger("docora.circuit")


def lets_through(repository: Repository) -> bool:
    """Closed: yes. Open: no. After the cooldown: yes for the first who asks."""
    until = repository.circuit_open_until
    if until is None:
        return True
    now = timezone.now()
    if until > now:
        return False
    rows = Repository.objects.filter(pk=repository.pk, circuit_open_until=until)
    return bool(rows.update(circuit_open_until=now + _cooldown()))


def count_success(repository: Repository) -> None:
    rows = Repository.objects.filter(pk=repository.pk)
    is_open = rows.exclude(circuit_open_until=None)
    if is_open.exists() and is_open.update(**Repository.HEALTHY):
        _closed(repository)
    elif repository.consecutive_failures or repository.last_error:
        rows.update(**Repository.HEALTHY)


def count_failure(repository: Repository, error: DocoraError) -> float | None:
    """Returns the pause before the next attempt; None when the circuit is open and a probe will come by itself."""
    rows = Repository.objects.filter(pk=repository.pk)
    rows.update(consecutive_failures=F("consecutive_failures") + 1, last_error_code=error.code, last_error=str(error))
    failures = rows.values_list("consecutive_failures", flat=True).first() or 0
    _tell_watches(repository, error, failures)
    if failures < settings.CIRCUIT_BREAKER_THRESHOLD and error.retriable:
        log.warning("Looking at %s failed (%d in a row): %s", repository, failures, error)
        return float(settings.RETRY_BASE_DELAY * 2 ** (failures - 1))
    until = timezone.now() + _cooldown()
    if rows.filter(circuit_open_until=None).update(circuit_open_until=until):
        _opened(repository, error, until)
    rows.update(next_check_at=F("circuit_open_until"))
    return None


def _opened(repository: Repository, error: DocoraError, until: datetime) -> None:
    """The one place where a circuit opens; further failures, and probes that fail, do not come here."""
    log.warning("Circuit of %s opened until %s: %s", repository, until.isoformat(timespec="seconds"), error)
    notices.announce_failure(repository.pk)


def _closed(repository: Repository) -> None:
    """The one place where a circuit closes."""
    log.info("Circuit of %s closed", repository)
    notices.announce_recovery(repository.pk)


def _tell_watches(repository: Repository, error: DocoraError, failures: int) -> None:
    """Each watch shows why it stands still, but one whose own token is refused keeps its own reason."""
    out_of_attempts = failures >= settings.MAX_RETRY_ATTEMPTS or not error.retriable
    repository.watches.filter(access_denied_at=None).update(
        status=WatchStatus.FAILED if out_of_attempts else WatchStatus.PENDING,
        retry_count=failures,
        last_error_code=error.code,
        last_error=sentence_of(error.code),
    )


def _cooldown() -> timedelta:
    return timedelta(seconds=settings.CIRCUIT_BREAKER_COOLDOWN)
