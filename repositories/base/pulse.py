"""Whether the service moves: when the scheduler ticked last, and how long the oldest job has been waiting."""

import time

import redis
from django.conf import settings
from rq import Queue, Worker
from rq.job import Job
from rq.serializers import JSONSerializer

from repositories.base import queue

_LAST_TICK = "docora:last-tick"


def note_tick() -> None:
    queue.connection().set(_LAST_TICK, time.time())


def seconds_since_tick() -> float | None:
    """None: never, as far as Redis remembers."""
    moment = queue.connection().get(_LAST_TICK)
    return None if moment is None else max(0.0, time.time() - float(moment))


def seconds_waited() -> float:
    """How long the job that is next in its queue has been there; the longest of all queues."""
    return max((_waited(name) for name in settings.RQ_QUEUES), default=0.0)


def untended_queues() -> list[str]:
    """Where jobs wait although no worker would ever take them."""
    connection = queue.connection()
    return [name for name in settings.RQ_QUEUES if queue.length(name) and not _has_worker(name, connection)]


def _has_worker(name: str, connection: redis.Redis) -> bool:
    return Worker.count(queue=Queue(name, connection=connection)) > 0


def _waited(name: str) -> float:
    waiting = Queue(name, connection=queue.connection(), serializer=JSONSerializer)
    jobs = Job.fetch_many(waiting.get_job_ids(0, 1), connection=queue.connection(), serializer=JSONSerializer)
    return max((time.time() - job.enqueued_at.timestamp() for job in jobs if job and job.enqueued_at), default=0.0)
