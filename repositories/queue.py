"""Messages to the workers, by dotted name: one pending job per id, however often it is asked for."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, partial
from typing import Any

import redis
from django.db import transaction
from rq import Queue
from rq.exceptions import DuplicateJobError, NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from repositories import connections

log = logging.getLogger("docora.queue")

SNAPSHOTS = "snapshots"
DELIVERIES = "deliveries"
# Endpoints that hang wait here, so that they never hold a worker of the others.
SLOW_DELIVERIES = "deliveries-slow"
ALL = (SNAPSHOTS, DELIVERIES, SLOW_DELIVERIES)
_WAITING = {JobStatus.QUEUED, JobStatus.SCHEDULED, JobStatus.DEFERRED, JobStatus.CREATED}
_RUNNING = {JobStatus.STARTED}


@cache
def connection() -> redis.Redis:
    """One connection pool per process; redis-py gives a forked process a pool of its own."""
    return connections.connect()


def enqueue(queue: str, function: str, argument: Any, *, job_id: str, timeout: float) -> None:
    """Ask for function(argument), once the transaction is committed.

    A job that is waiting already will see all that is committed by then, so it is enough. One that
    is running may have looked already, so one more round is queued behind it.
    """
    push = partial(_push, queue, function, argument, job_id, timeout)
    # robust: the rows are committed and the scheduler's tick finds them, so Redis being down loses nothing.
    transaction.on_commit(push, robust=True)


def hurry(queue: str, job_id: str) -> None:
    """Let a job that waits for a later time run now."""
    target = Queue(queue, connection=connection(), serializer=JSONSerializer)
    for name in _rounds(job_id):
        # Who takes it off the list of later jobs is the one to queue it.
        if connection().zrem(target.scheduled_job_registry.key, name):
            with suppress(NoSuchJobError):
                target.enqueue_job(Job.fetch(name, connection=connection(), serializer=JSONSerializer))


def drop(job_id: str) -> None:
    """Take back a job that is waiting, once the transaction is committed; one that is running ends by itself."""
    transaction.on_commit(partial(_drop, job_id), robust=True)


def is_alive(job_id: str) -> bool:
    """Whether a job, or the round behind it, is waiting or running."""
    return any(_status(name) in _WAITING | _RUNNING for name in _rounds(job_id))


def _rounds(job_id: str) -> Iterator[str]:
    yield job_id
    yield f"{job_id}-again"


def _drop(job_id: str) -> None:
    """Only what stands in line: a worker that has taken a job needs its record until it has ended."""
    for name in _rounds(job_id):
        with suppress(NoSuchJobError):
            job = Job.fetch(name, connection=connection(), serializer=JSONSerializer)
            line = Queue(job.origin, connection=connection(), serializer=JSONSerializer)
            if connection().lrem(line.key, 1, name) or connection().zrem(line.scheduled_job_registry.key, name):
                job.delete(remove_from_queue=False)


def _push(queue: str, function: str, argument: Any, job_id: str, timeout: float) -> None:
    for name in _rounds(job_id):
        if _push_one(queue, function, argument, name, timeout):
            return


def _push_one(queue: str, function: str, argument: Any, job_id: str, timeout: float) -> bool:
    """False if a job of that id is running."""
    target = Queue(queue, connection=connection(), serializer=JSONSerializer)
    for _ in range(3):
        try:
            target.enqueue_call(
                function,
                args=(argument,),
                job_id=job_id,
                unique=True,
                timeout=int(timeout),
                result_ttl=0,
                failure_ttl=3600,
            )
        except DuplicateJobError:
            status = _status(job_id)
            if status in _WAITING:
                return True
            if status in _RUNNING:
                return False
            _forget(job_id)  # ended, but its id is kept for its failure_ttl
        else:
            return True
    return True


def _status(job_id: str) -> JobStatus | None:
    try:
        return Job.fetch(job_id, connection=connection(), serializer=JSONSerializer).get_status()
    except NoSuchJobError:
        return None


def _forget(job_id: str) -> None:
    with suppress(NoSuchJobError):
        Job.fetch(job_id, connection=connection(), serializer=JSONSerializer).delete()
