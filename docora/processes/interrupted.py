"""Puts the jobs of killed workers back on their queues: not lost, not failed, no retry spent.

Call it only for workers whose processes, horses included, are gone. A worker is named by the mark of its process, so a
run finds its own jobs among those of other hosts on the same Redis.
"""

import socket
from collections.abc import Container, Iterator
from contextlib import suppress

import psutil
from redis import Redis
from rq import Queue, Worker
from rq.exceptions import SchedulerNotFound
from rq.executions import Execution
from rq.scheduler import RQScheduler
from rq.scripts import release_lock
from rq.serializers import JSONSerializer
from rq.utils import as_text

from docora.processes.leftovers import is_within
from repositories.base import queue as queues
from repositories.repo_lock import lock_status, release_after_kill


def put_back(scope: str, connection: Redis) -> list[str]:
    """Queue what the workers of scope were running, free their locks, and remove them from RQ's list of workers."""
    returned = [
        execution.job_id
        for queue in _queues(connection)
        for execution in _executions(queue)
        if is_within(execution.worker_name, scope) and _return(execution, queue)
    ]
    for worker in Worker.all(connection=connection):
        if is_within(worker.name, scope):
            worker.register_death()  # type: ignore[no-untyped-call]
    for queue in _queues(connection):
        _free_scheduler_lock(queue)
    return returned


def taken(connection: Redis) -> set[str]:
    """Jobs that a worker has taken from its queue and not started. A living worker starts them in a moment."""
    return {
        job_id
        for queue in _queues(connection)
        for job_id in queue.intermediate_queue.get_job_ids()
        if job_id not in queue.started_job_registry
    }


def put_back_taken(job_ids: Container[str], connection: Redis) -> list[str]:
    """Queue those that are still taken: their worker has died. Were it only slow, such a job would be done twice."""
    return [
        job_id
        for queue in _queues(connection)
        for job_id in queue.intermediate_queue.get_job_ids()
        if job_id in job_ids and _return_taken(job_id, queue)
    ]


def _queues(connection: Redis) -> list[Queue]:
    return [Queue(name, connection=connection, serializer=JSONSerializer) for name in queues.ALL]


def _executions(queue: Queue) -> Iterator[Execution]:
    for job_id, execution_id in queue.started_job_registry.get_job_and_execution_ids(cleanup=False):
        try:
            yield Execution.fetch(id=execution_id, job_id=job_id, connection=queue.connection)
        except ValueError:  # it ended in the meantime
            continue


def _return(execution: Execution, queue: Queue) -> bool:
    job = queue.fetch_job(execution.job_id)
    if job is None:
        return False
    _free_locks(job.id)
    with queue.connection.pipeline() as pipeline:
        job.started_at = job.worker_name = None
        queue.enqueue_job(job, pipeline=pipeline, at_front=True)  # first: it refuses a pipeline in use
        execution.delete(job=job, pipeline=pipeline)
        pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
        pipeline.execute()
    return True


def _free_locks(job_id: str) -> None:
    """Without this, the job's next run would wait for the TTL of its own dead predecessor."""
    for status in lock_status():
        if status.holder.job_id == job_id:
            release_after_kill(job_id, status.holder.pid)


def _free_scheduler_lock(queue: Queue) -> None:
    """If its holder on this host is dead: else jobs that are due later would wait a minute for the lock to expire."""
    key = RQScheduler.get_locking_key(queue.name)
    name = as_text(queue.connection.get(key) or b"")
    with suppress(SchedulerNotFound):
        holder = RQScheduler.fetch(name, connection=queue.connection)
        if holder.hostname == socket.gethostname() and not psutil.pid_exists(holder.pid):
            release_lock(queue.connection, key, name)


def _return_taken(job_id: str, queue: Queue) -> bool:
    job = queue.fetch_job(job_id)
    never_started = job is not None and job_id not in queue.started_job_registry
    with queue.connection.pipeline() as pipeline:
        if job is not None and never_started:
            queue.enqueue_job(job, pipeline=pipeline, at_front=True)
        pipeline.lrem(queue.intermediate_queue_key, 1, job_id)
        pipeline.execute()
    return never_started
