"""A job that does not get its lock comes back later; real failures stay what they are."""

import pytest
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from repositories.base import connections
from repositories.errors import Holder
from repositories.repo_lock import LockLostError, LockTimeoutError
from repositories.repo_lock.retry import _pause, retry_when_locked
from tests.support.worker import run_jobs

BUSY = LockTimeoutError("owner/repo", Holder(job_id="37", host="here", pid=1, since=0), 60.0)
_raises: list[Exception] = []


@retry_when_locked
def job() -> str:
    if _raises:
        raise _raises.pop(0)
    return "done"


@pytest.fixture
def queue() -> Queue:
    _raises.clear()
    return Queue("snapshots", connection=connections.connect(), serializer=JSONSerializer)


def enqueue(queue: Queue, *errors: Exception) -> None:
    _raises.extend(errors)
    queue.enqueue_call(
        "tests.repositories.repo_lock.test_retry.job", job_id="snapshot-1", unique=True, retry=Retry(max=3, interval=5)
    )


def state(queue: Queue) -> Job:
    return Job.fetch("snapshot-1", connection=queue.connection, serializer=JSONSerializer)


@pytest.mark.parametrize("error", [BUSY, LockLostError("owner/repo")])
def test_a_busy_or_lost_lock_reschedules_the_job_under_its_own_id(queue: Queue, error: Exception) -> None:
    enqueue(queue, error)
    run_jobs()
    after = state(queue)
    assert after.get_status() == JobStatus.SCHEDULED
    assert (after.retries_left, after.number_of_retries) == (3, 1)
    assert list(queue.scheduled_job_registry.get_job_ids()) == ["snapshot-1"]
    assert after.meta == {}


def test_a_real_failure_uses_up_an_attempt(queue: Queue) -> None:
    enqueue(queue, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run_jobs()
    after = state(queue)
    assert after.get_status() == JobStatus.SCHEDULED
    assert (after.retries_left, after.number_of_retries) == (2, None)


def test_outside_of_a_worker_the_error_is_raised(queue: Queue) -> None:
    _raises.append(BUSY)
    with pytest.raises(LockTimeoutError):
        job()
    assert job() == "done"


def test_pauses_grow_to_a_minute_and_differ_by_chance() -> None:
    assert all(1 <= _pause(0) <= 2 for _ in range(50))
    assert all(8 <= _pause(3) <= 16 for _ in range(50))
    assert all(30 <= _pause(many) <= 60 for many in (6, 100, 10**6))
    assert len({_pause(9) for _ in range(50)}) > 5
