"""Every message to the workers: the function by its dotted name, the queue, the job's id and its time-out.

By dotted name, because what works on a message may be in a room above this one.
"""

import hashlib
from collections.abc import Callable

from django.conf import settings

from repositories.base import queue

RECONCILE = "snapshots.jobs.reconcile_all"

# The slow lane has the time for one file of a gibibyte in pieces that take seconds each.
_DELIVERY_TIMEOUT = 6 * 3600
_RECONCILE_TIMEOUT = 6 * 3600
_BULK_TIMEOUT = 4 * 3600
_SHORT = 60
# An urgent job that takes longer gives its place to the next one, and goes on in the ordinary queue.
_URGENT_TIMEOUT = 15


def snapshot_job(repository_id: int) -> str:
    return f"snapshot-{repository_id}"


def delivery_job(watch_id: int) -> str:
    return f"deliver-{watch_id}"


def urgent_look_job(repository_id: int) -> str:
    return f"hint-{repository_id}"


def urgent_delivery_job(watch_id: int) -> str:
    return f"hint-deliver-{watch_id}"


def jobs_of_repository(repository_id: int) -> tuple[str, ...]:
    return snapshot_job(repository_id), urgent_look_job(repository_id)


def jobs_of_watch(watch_id: int) -> tuple[str, ...]:
    return delivery_job(watch_id), urgent_delivery_job(watch_id)


def measure_job(name: str) -> str:
    return f"measure-{name}"


def take_snapshot(repository_id: int, *, planned: bool) -> None:
    """A look that somebody waits for comes before those that the scheduler plans."""
    _take_snapshot(queue.enqueue, repository_id, first=not planned)


def look_soon(repository_id: int) -> None:
    """The same for a hint: raises redis.RedisError if it cannot be queued."""
    _take_snapshot(queue.enqueue_now, repository_id, first=True)


def _take_snapshot(enqueue: Callable[..., None], repository_id: int, *, first: bool) -> None:
    job_id, timeout = snapshot_job(repository_id), 2 * settings.GIT_TIMEOUT
    enqueue(queue.SNAPSHOTS, "snapshots.jobs.take_snapshot", repository_id, job_id=job_id, timeout=timeout, first=first)


def look_now(repository_id: int) -> None:
    """For a hint: in the urgent queue, which has no long work."""
    job_id = urgent_look_job(repository_id)
    queue.enqueue_now(queue.URGENT, "snapshots.jobs.look_now", repository_id, job_id=job_id, timeout=_URGENT_TIMEOUT)


def measure(sealed_question: str, *, name: str) -> None:
    job_id, timeout = measure_job(name), 2 * settings.GIT_TIMEOUT
    queue.enqueue(queue.SNAPSHOTS, "snapshots.jobs.measure", sealed_question, job_id=job_id, timeout=timeout)


def measure_clones() -> None:
    queue.enqueue(
        queue.SNAPSHOTS, "docora.console.disk.measure", None, job_id=measure_job("clones"), timeout=10 * _SHORT
    )


def purge_clone(clone_key: str, *, repository_id: int) -> None:
    job_id, timeout = f"purge-{repository_id}", settings.GIT_TIMEOUT
    queue.enqueue(queue.SNAPSHOTS, "repositories.jobs.purge_clone", clone_key, job_id=job_id, timeout=timeout)


def recheck_owner(owner: str) -> None:
    """Raises redis.RedisError if it cannot be queued."""
    # A hash, because an id may not contain all that a name may.
    job_id = f"recheck-{hashlib.sha256(owner.lower().encode(errors='replace')).hexdigest()[:32]}"
    queue.enqueue_now(queue.SNAPSHOTS, "repositories.jobs.recheck_owner", owner, job_id=job_id, timeout=_SHORT)


def reconcile() -> None:
    queue.enqueue(queue.SNAPSHOTS, RECONCILE, None, job_id="reconcile", timeout=_RECONCILE_TIMEOUT)


def deliver(watch_id: int, *, lane: str, first: bool = False) -> None:
    job_id, timeout = delivery_job(watch_id), _DELIVERY_TIMEOUT
    queue.enqueue(lane, "snapshots.jobs.deliver", watch_id, job_id=job_id, timeout=timeout, first=first)


def deliver_now(watch_id: int) -> None:
    """A job of its own beside the ordinary one, which may be far back in its queue; the one lock is for both."""
    job_id = urgent_delivery_job(watch_id)
    queue.enqueue(queue.URGENT, "snapshots.jobs.deliver", watch_id, job_id=job_id, timeout=_URGENT_TIMEOUT)


def send_notice(kind: str, watch_id: int, *, lane: str) -> None:
    job_id = f"notice-{kind}-{watch_id}"
    queue.enqueue(lane, "snapshots.jobs.send_notice", [kind, watch_id], job_id=job_id, timeout=5 * _SHORT)


def send_complete(watch_id: int, *, lane: str) -> None:
    job_id = f"complete-{watch_id}"
    queue.enqueue(lane, "snapshots.jobs.send_complete", watch_id, job_id=job_id, timeout=5 * _SHORT)


def run_on_many_rows(run_id: str) -> None:
    """An operation of the console on many rows."""
    job_id = f"bulk-{run_id}"
    queue.enqueue(queue.DELIVERIES, "docora.console.bulk.run", run_id, job_id=job_id, timeout=_BULK_TIMEOUT)


def announce_failure(repository_id: int) -> None:
    _announce("announce_failure", f"failure-{repository_id}", repository_id)


def announce_recovery(repository_id: int) -> None:
    _announce("announce_recovery", f"recovery-{repository_id}", repository_id)


def announce_refusal(watch_id: int) -> None:
    _announce("announce_refusal", f"refusal-{watch_id}", watch_id)


def resume_app(app_id: int) -> None:
    _announce("resume_app", f"resume-app-{app_id}", app_id)


def mail_disabled(app_id: int) -> None:
    _announce("mail_disabled", f"mail-disabled-{app_id}", app_id)


def _announce(function: str, job_id: str, subject: int) -> None:
    queue.enqueue(queue.DELIVERIES, f"snapshots.jobs.{function}", subject, job_id=job_id, timeout=_SHORT)
