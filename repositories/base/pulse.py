"""Whether the service moves: when the scheduler ticked last, and how long the oldest job has been waiting."""

import time

import redis

from repositories.base import queue

_LAST_TICK = "docora:last-tick"


def note_tick() -> None:
    queue.connection().set(_LAST_TICK, time.time())


def seconds_since_tick(connection: redis.Redis | None = None) -> float | None:
    """None: never, as far as Redis remembers."""
    moment = (connection or queue.connection()).get(_LAST_TICK)
    return None if moment is None else max(0.0, time.time() - float(moment))


def seconds_waited() -> float:
    """How long the job that is next in its queue has been there; the longest of all queues."""
    return max((_waited(name) for name in queue.ALL), default=0.0)


def untended_queues() -> list[str]:
    """Where jobs wait although no worker would ever take them."""
    return [name for name in queues_without_worker() if queue.length(name)]


def queues_without_worker() -> list[str]:
    return [name for name in queue.ALL if not count_workers(name)]


def count_workers(name: str = "", *, connection: redis.Redis | None = None) -> int:
    """Living workers of this queue, or of any. rq's list keeps the name of a killed worker, but its record expires."""
    connection = connection or queue.connection()
    workers = connection.smembers(f"rq:workers:{name}" if name else "rq:workers")
    return int(connection.exists(*workers)) if workers else 0


def _waited(name: str) -> float:
    jobs = queue.named(name).get_jobs(0, 1)
    return max((time.time() - job.enqueued_at.timestamp() for job in jobs if job.enqueued_at), default=0.0)
