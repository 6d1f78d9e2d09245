"""A job whose repository is busy is rescheduled. It has not failed."""

import logging
from collections.abc import Callable
from functools import wraps
from random import SystemRandom
from typing import ParamSpec, TypeVar

from rq import Retry, get_current_job

from repositories.errors import LockLostError, LockTimeoutError

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("docora.repo_lock")

_LONGEST_PAUSE = 60
_NO_LIMIT = 2**31
_random = SystemRandom()


def retry_when_locked(job_function: Callable[P, R]) -> Callable[P, R | Retry]:
    """Reschedule the job when it did not get its lock, or lost it.

    RQ counts a returned Retry in `number_of_retries` and a raised error in `retries_left`. So waiting for a
    lock uses none of the attempts that `enqueue(retry=…)` grants for failures. The job keeps its id, so a
    unique job stays unique. Outside of a worker the error is raised unchanged.
    """

    @wraps(job_function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | Retry:
        try:
            return job_function(*args, **kwargs)
        except (LockTimeoutError, LockLostError) as error:
            job = get_current_job()
            if job is None:
                raise
            pause = _pause(job.number_of_retries or 0)
            log.info("Job %s will try again in %s s: %s", job.id, pause, error)
            return Retry(max=_NO_LIMIT, interval=pause)

    return run


def _pause(times_before: int) -> int:
    """Seconds that double up to a minute, minus a random part up to half, so that jobs do not come back together."""
    full = min(_LONGEST_PAUSE, 2.0 ** (min(times_before, 9) + 1))
    return max(1, round(full * _random.uniform(0.5, 1)))
