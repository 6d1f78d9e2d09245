"""Jobs that are due later, queued by a thread of the scheduler."""

from datetime import timedelta
from typing import Any

import pytest
import redis
from rq.scheduler import RQScheduler

from docora.processes import due_later
from repositories.base import queue
from tests.support.service import wait_until

pytestmark = pytest.mark.slow


def lock_of(name: str) -> str:
    return str(RQScheduler.get_locking_key(name))


def put_off(name: str) -> None:
    queue.named(name).enqueue_in(timedelta(seconds=0.1), "time.sleep", 0, job_id=f"job-of-{name}")


def test_jobs_of_every_queue_are_queued_when_their_time_has_come(valkey: redis.Redis) -> None:
    for name in queue.ALL:
        put_off(name)
    with due_later.queueing():
        wait_until(lambda: all(map(queue.length, queue.ALL)), "the jobs are queued")
    assert [queue.named(name).job_ids for name in queue.ALL] == [[f"job-of-{name}"] for name in queue.ALL]
    assert not valkey.exists(*map(lock_of, queue.ALL)), "the next one need not wait"
    assert list(valkey.scan_iter("rq:scheduler:*")) == []


def test_a_queue_is_left_to_a_worker_that_does_it_and_taken_over_from_a_dead_one(valkey: redis.Redis) -> None:
    valkey.set(lock_of(queue.SNAPSHOTS), "a worker on another host")
    for name in (queue.SNAPSHOTS, queue.DELIVERIES):
        put_off(name)
    with due_later.queueing():
        wait_until(lambda: queue.length(queue.DELIVERIES) == 1, "the job of the other queue is queued")
        assert queue.length(queue.SNAPSHOTS) == 0
        valkey.delete(lock_of(queue.SNAPSHOTS))  # it expires
        wait_until(lambda: queue.length(queue.SNAPSHOTS) == 1, "the job is queued here")


def test_it_goes_on_after_redis_was_away(valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [redis.ConnectionError("gone")] * 2
    acquire: Any = RQScheduler.acquire_locks

    def fail_at_first(scheduler: Any) -> Any:
        if failures:
            raise failures.pop()
        return acquire(scheduler)

    monkeypatch.setattr(RQScheduler, "acquire_locks", fail_at_first)
    put_off(queue.SNAPSHOTS)
    with due_later.queueing():
        wait_until(lambda: queue.length(queue.SNAPSHOTS) == 1, "the job is queued")
