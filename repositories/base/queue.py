"""Messages to the workers, by dotted name: one pending job per id, however often it is asked for."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import redis
from django.db import transaction
from rq import Queue, Retry, get_current_job
from rq.exceptions import DuplicateJobError, InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from repositories.base import connections, log_context
from repositories.base.listed_job import ListedJob
from repositories.base.queue_names import ALL as ALL
from repositories.base.queue_names import DELIVERIES as DELIVERIES
from repositories.base.queue_names import SLOW_DELIVERIES as SLOW_DELIVERIES
from repositories.base.queue_names import SNAPSHOTS as SNAPSHOTS
from repositories.base.queue_names import URGENT as URGENT

log = logging.getLogger("docora.queue")

_WAITING = {JobStatus.QUEUED, JobStatus.SCHEDULED, JobStatus.DEFERRED, JobStatus.CREATED}
_RUNNING = {JobStatus.STARTED}
_AGAIN = "-again"
# A running job is heard of every few seconds; after this silence its worker is dead.
_SILENCE = timedelta(seconds=30)
# A job whose process was killed has not failed: it is tried again, three times at the most.
_AFTER_A_CRASH = [1, 5, 30]
# Seconds for which a job that says it waits must be seen in no line before it counts as lost.
_LOST_AFTER = 30
_NOTED_FOR = 3600
_IN_NO_LINE = "docora:in-no-line:{}:{}"
# In one step: a crash between two would leave a job in no queue, with its id taken.
_MOVE_TO_FRONT = "if redis.call('LREM', KEYS[1], 1, ARGV[1]) > 0 then redis.call('LPUSH', KEYS[1], ARGV[1]) end"
# Seconds for one question of a caller that answers at once, with an error if it must: the answer to a hook has 0.1 s.
_IMPATIENT = 0.08

P = ParamSpec("P")
R = TypeVar("R")


@cache
def connection() -> redis.Redis:
    """One connection pool per process; redis-py gives a forked process a pool of its own."""
    return connections.connect()


@cache
def impatient_connection() -> redis.Redis:
    return connections.connect_impatiently(timeout=_IMPATIENT)


_in_use: ContextVar[redis.Redis | None] = ContextVar("_in_use", default=None)


@contextmanager
def without_waiting() -> Iterator[None]:
    """What this thread asks of the queue inside of the block fails at once if Redis does not answer."""
    token = _in_use.set(impatient_connection())
    try:
        yield
    finally:
        _in_use.reset(token)


def connection_in_use() -> redis.Redis:
    """The impatient one inside of `without_waiting`."""
    return _in_use.get() or connection()


def named(queue: str) -> Queue:
    return Queue(queue, connection=connection_in_use(), job_class=ListedJob, serializer=JSONSerializer)


def key_of(queue: str) -> str:
    """Of the list in Redis in which the jobs of a queue stand in line."""
    return f"{Queue.redis_queue_namespace_prefix}{queue}"


@dataclass(frozen=True, slots=True)
class _Message:
    queue: str
    function: str
    argument: Any
    job_id: str
    timeout: float
    first: bool
    # Of the request that asked for it: the lines of its job have it too.
    request_id: str

    @property
    def target(self) -> Queue:
        return named(self.queue)


def enqueue(queue: str, function: str, argument: Any, *, job_id: str, timeout: float, first: bool = False) -> None:
    """Ask for function(argument), once the transaction is committed; `first`: before all that is waiting.

    A job that is waiting already will see all that is committed by then, so it is enough; it comes to the
    front if this is `first`, and one that was put off to a later time is queued now. One that is running may
    have looked already, so one more round is queued, which begins when the running one has ended.
    """
    # robust: the rows are committed and the scheduler's tick finds them, so Redis being down loses nothing.
    # No partial: Django looks for the name of a robust callback that fails.
    message = _Message(queue, function, argument, job_id, timeout, first, log_context.request_id())
    transaction.on_commit(lambda: _push(message), robust=True)


def enqueue_now(queue: str, function: str, argument: Any, *, job_id: str, timeout: float, first: bool = False) -> None:
    """The same, without waiting for a commit; the caller hears of it when Redis fails."""
    _push(_Message(queue, function, argument, job_id, timeout, first, log_context.request_id()))


def hurry(queue: str, job_id: str) -> None:
    """Let a job that waits for a later time run now."""
    target = named(queue)
    for name in _rounds(job_id):
        _bring_forward(target, name)


def drop(job_id: str) -> None:
    """Take back a job that is waiting, once the transaction is committed; one that is running ends by itself."""
    transaction.on_commit(lambda: _drop(job_id), robust=True)


def is_alive(job_id: str) -> bool:
    """Whether a job, or the round behind it, is waiting or running."""
    return any(_is_waiting(name) or _status(name) in _RUNNING for name in _rounds(job_id))


def length(queue: str) -> int:
    return named(queue).count


def one_round_at_a_time(job_function: Callable[P, R]) -> Callable[P, R | Retry]:
    """Job `X-again` begins after job `X` has ended. Until then, all that is asked for meanwhile is left to it."""

    @wraps(job_function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | Retry:
        job = get_current_job()
        if job and job.id.endswith(_AGAIN) and _is_running(job.id.removesuffix(_AGAIN)):
            return Retry(max=2**31, interval=1)
        return job_function(*args, **kwargs)

    return run


def _is_running(job_id: str) -> bool:
    """A job whose worker has died still has the status `started`, but its heartbeat is old."""
    job = fetch(job_id)
    if job is None or _status(job_id) not in _RUNNING or job.last_heartbeat is None:
        return False
    return datetime.now(UTC) - job.last_heartbeat.astimezone(UTC) < _SILENCE


def _rounds(job_id: str) -> Iterator[str]:
    yield job_id
    yield f"{job_id}{_AGAIN}"


def _drop(job_id: str) -> None:
    """Only what stands in line: a worker that has taken a job needs its record until it has ended."""
    for name in _rounds(job_id):
        if job := fetch(name):
            line = named(job.origin)
            redis_server = connection_in_use()
            if redis_server.lrem(line.key, 1, name) or redis_server.zrem(line.scheduled_job_registry.key, name):
                job.delete(remove_from_queue=False)


def _push(message: _Message) -> None:
    again = replace(message, job_id=f"{message.job_id}{_AGAIN}")
    if _is_waiting(again.job_id):
        _bring_forward(again.target, again.job_id, first=again.first)
    elif not _push_one(message):
        _push_one(again)


def _push_one(message: _Message) -> bool:
    """False if a job of that id is running."""
    for _ in range(3):
        try:
            _create(message)
        except DuplicateJobError:
            if _is_waiting(message.job_id):
                _bring_forward(message.target, message.job_id, first=message.first)
                return True
            if _status(message.job_id) in _RUNNING:
                return False
            _forget(message.job_id)  # lost; or ended, but its id is kept for its failure_ttl
        else:
            return True
    return True


def _create(message: _Message) -> None:
    message.target.enqueue_call(
        message.function,
        args=(message.argument,),
        job_id=message.job_id,
        unique=True,
        timeout=int(message.timeout),
        result_ttl=0,
        failure_ttl=3600,
        at_front=message.first,
        meta={"request_id": message.request_id} if message.request_id else None,
        retry=Retry(max=len(_AFTER_A_CRASH), interval=_AFTER_A_CRASH),
    )


def _bring_forward(target: Queue, job_id: str, *, first: bool = False) -> None:
    """A new request ends the pause that a failure has made: the job is queued at once; `first`: before the others."""
    job = fetch(job_id)
    if job is None:
        return
    place = named(job.origin)  # it may have been put off in another lane
    # Several processes may try this; only the one that removed it from the scheduled jobs queues it.
    if place.scheduled_job_registry.remove(job):
        target.enqueue_job(job, at_front=first)
    elif first:
        connection_in_use().eval(_MOVE_TO_FRONT, 1, place.key, job_id)


def fetch(job_id: str) -> Job | None:
    """None if there is no such job any more."""
    try:
        return ListedJob.fetch(job_id, connection=connection_in_use(), serializer=JSONSerializer)
    except NoSuchJobError:
        return None


def _status(job_id: str) -> JobStatus | None:
    job = fetch(job_id)
    try:
        return job.get_status() if job else None
    except InvalidJobOperation:  # it has ended since it was fetched
        return None


def _is_waiting(job_id: str) -> bool:
    return _status(job_id) in _WAITING and not _is_lost(job_id)


def _is_lost(job_id: str) -> bool:
    """It says that it waits, but stands in no line: who had just taken it, to run it or to bring it forward, has died.

    Nobody will run it, and its id would be taken for ever. It may have been taken this very moment, so it must be seen
    so twice.
    """
    job = fetch(job_id)
    if job is None:
        return False
    line, redis_server = named(job.origin), connection_in_use()
    with redis_server.pipeline(transaction=True) as places:
        places.zscore(line.scheduled_job_registry.key, job_id)
        places.lpos(line.intermediate_queue_key, job_id)
        places.lpos(line.key, job_id)
        if any(place is not None for place in places.execute()):
            return False
    seen = _IN_NO_LINE.format(job_id, job.enqueued_at)
    if redis_server.set(seen, 1, nx=True, ex=_NOTED_FOR):
        return False
    is_lost = _NOTED_FOR - redis_server.ttl(seen) > _LOST_AFTER
    if is_lost:
        log.error("Job %s was in no queue although it was waiting; it is asked for again", job_id)
    return is_lost


def _forget(job_id: str) -> None:
    if job := fetch(job_id):
        job.delete()
