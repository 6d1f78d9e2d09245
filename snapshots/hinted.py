"""A look that a hint asked for: at once, and short. What takes long moves to the ordinary queue and goes on there.

A look of the ordinary queue answers the hints that came before it too, whatever it was queued for.
"""

import logging
import time

from rq.timeouts import JobTimeoutException

from repositories import hints, messages
from repositories.base import queue
from repositories.errors import LockTimeoutError
from snapshots.look import take_snapshot

log = logging.getLogger("docora.hints")

# Seconds. A worker that waits for the next look at one repository notices within them that another one has a hint.
_NAP = 0.05


def look(repository_id: int, *, job_id: str) -> float | None:
    """One look for all hints so far; returns the seconds after which to come back, if there is more to do."""
    hint = hints.newest(repository_id)
    if hint is None:
        return None  # a look that began after it has answered it
    while pause := hints.claim_look(repository_id):
        time.sleep(min(pause, _NAP))
        if queue.length(queue.URGENT):
            return 0.0
        hint = hints.newest(repository_id) or hint
    try:
        pause_after_failure = take_snapshot(repository_id, job_id=job_id, hint=hint, urgent=True)
    except LockTimeoutError as error:
        # A fetch of this repository is under way: an ordinary look waits for its end.
        log.info("Left the hint to the ordinary queue: %s", error)
        messages.take_snapshot(repository_id, planned=False)
        return None
    except JobTimeoutException:
        log.warning("The look at repository %d takes too long for the urgent queue", repository_id)
        hints.note_long(repository_id)
        messages.take_snapshot(repository_id, planned=False)
        return None
    if pause_after_failure is not None:
        return pause_after_failure
    return None if hints.answer(repository_id, hint) else 0.0


def look_in_turn(repository_id: int, *, job_id: str) -> float | None:
    """A look of the ordinary queue; returns the seconds after which to try again, if it must be."""
    hint = hints.newest(repository_id)
    pause = take_snapshot(repository_id, job_id=job_id, hint=hint)
    if hint and pause is None and not hints.answer(repository_id, hint):
        return 0.0  # a newer one came during the look, and may have queued no job because of this one
    return pause
