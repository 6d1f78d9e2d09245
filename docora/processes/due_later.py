"""Queues the jobs whose time has come, such as further attempts.

RQ's workers have a process for this, which `manage.py rqworker` starts as ever. Here it is a thread of the scheduler:
one process less for `manage.py up`. Both hold RQ's lock of a queue, so there is one for each queue at any time.
"""

import contextlib
from collections.abc import Iterator
from threading import Event, Thread
from typing import Any

import redis
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer

from repositories.base import queue

# An orderly end releases the locks; else the next to want them waits for a minute. A Redis that hangs is left alone.
_LEAVE_WITHIN = 1.0


@contextlib.contextmanager
def queueing() -> Iterator[None]:
    ended = Event()
    thread = Thread(target=_queue_until, args=(ended,), name="due-later", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_LEAVE_WITHIN)


def _queue_until(ended: Event) -> None:
    # Any: its methods have no types
    scheduler: Any = RQScheduler(queue.ALL, connection=queue.connection(), serializer=JSONSerializer)
    while not ended.wait(scheduler.interval):
        # The tick in the other thread says it in the log when Redis is away.
        with contextlib.suppress(redis.RedisError):
            scheduler.register_birth()
            scheduler.acquire_locks()
            scheduler.enqueue_scheduled_jobs()
    with contextlib.suppress(redis.RedisError):
        scheduler.stop()
