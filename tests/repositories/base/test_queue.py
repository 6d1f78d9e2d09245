"""The queue: one pending job per id, one more round behind a running one, nothing lost and nothing doubled."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis
from django.db import transaction
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from repositories.base import queue

pytestmark = pytest.mark.django_db(transaction=True)


def ask(job_id: str = "job", *, first: bool = False) -> None:
    queue.enqueue(queue.SNAPSHOTS, "builtins.abs", -1, job_id=job_id, timeout=60, first=first)


def waiting() -> list[str]:
    return Queue(queue.SNAPSHOTS, connection=queue.connection(), serializer=JSONSerializer).job_ids


def job(job_id: str) -> Job:
    return Job.fetch(job_id, connection=queue.connection(), serializer=JSONSerializer)


@pytest.fixture
def start() -> Callable[[str], Job]:
    """Take a job off the queue, as a worker does."""

    def begin(job_id: str) -> Job:
        started = job(job_id)
        queue.connection().lrem(f"rq:queue:{queue.SNAPSHOTS}", 0, job_id)
        started.set_status(JobStatus.STARTED)
        started.heartbeat(datetime.now(UTC), 60)
        return started

    return begin


def put_off(started: Job) -> None:
    """What the worker does with a job that returns Retry."""
    target = Queue(queue.SNAPSHOTS, connection=queue.connection(), serializer=JSONSerializer)
    with queue.connection().pipeline() as pipeline:
        started._handle_retry_result(
            queue=target,
            pipeline=pipeline,
            retry=Retry(max=5, interval=600),
            worker_name="test",
            execution_id="1",
            execution_started_at=datetime.now(UTC),
            execution_ended_at=datetime.now(UTC),
        )
        pipeline.execute()


def test_a_hundred_requests_are_one_job() -> None:
    for _ in range(100):
        ask()
    assert waiting() == ["job"]


def test_requests_during_a_run_are_one_more_round(start: Callable[[str], Job]) -> None:
    ask()
    start("job")
    for _ in range(100):
        ask()
    assert waiting() == ["job-again"]


def test_the_round_behind_is_enough_when_the_first_has_ended(start: Callable[[str], Job]) -> None:
    ask()
    running = start("job")
    ask()
    running.delete()
    ask()
    assert waiting() == ["job-again"]


def test_the_round_behind_waits_for_the_end_of_the_running_one(
    start: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    running = start("job")
    ask()
    monkeypatch.setattr(queue, "get_current_job", lambda: job("job-again"))
    door = queue.one_round_at_a_time(lambda: "ran")
    assert isinstance(door(), Retry)
    running.heartbeat(datetime.now(UTC) - timedelta(minutes=1), 60)
    assert door() == "ran", "a dead worker is not waited for"
    running.delete()
    assert door() == "ran"


def test_who_asks_during_a_pause_does_not_wait_for_its_end(start: Callable[[str], Job]) -> None:
    ask()
    put_off(start("job"))
    assert waiting() == []
    ask()
    assert waiting() == ["job"]
    assert job("job").get_status() == JobStatus.QUEUED


def test_a_job_that_failed_does_not_block_its_id(start: Callable[[str], Job]) -> None:
    ask()
    start("job").set_status(JobStatus.FAILED)
    ask()
    assert waiting() == ["job"]


def test_who_waits_for_it_comes_before_what_is_planned() -> None:
    ask("planned")
    ask("asked", first=True)
    assert waiting() == ["asked", "planned"]


def test_who_waits_for_a_job_that_is_planned_already_brings_it_to_the_front(start: Callable[[str], Job]) -> None:
    for name in ("one", "two", "three"):
        ask(name)
    ask("three", first=True)
    assert waiting() == ["three", "one", "two"]
    ask("two")
    assert waiting() == ["three", "one", "two"]
    start("three")
    ask("three", first=True)
    ask("two", first=True)
    ask("three", first=True)
    assert waiting() == ["three-again", "two", "one"]


def test_a_job_that_a_worker_has_just_taken_is_not_queued_again() -> None:
    """Its status is still `queued` for a moment, but it stands in no line."""
    ask()
    queue.connection().delete(f"rq:queue:{queue.SNAPSHOTS}")
    ask(first=True)
    assert waiting() == []


def test_a_job_that_its_taker_has_lost_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker died, or was cut off from Redis, after it had taken the job and before it noted that it runs."""
    ask()
    queue.connection().delete(f"rq:queue:{queue.SNAPSHOTS}")
    ask()
    assert queue.is_alive("job")
    monkeypatch.setattr(queue, "_LOST_AFTER", -1)
    assert not queue.is_alive("job")
    ask()
    assert waiting() == ["job"]
    assert queue.is_alive("job")


def test_a_round_behind_that_was_lost_is_asked_for_again(
    start: Callable[[str], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask()
    start("job")
    ask()
    queue.connection().delete(f"rq:queue:{queue.SNAPSHOTS}")
    ask()
    monkeypatch.setattr(queue, "_LOST_AFTER", -1)
    ask()
    assert waiting() == ["job-again"]


def test_a_job_that_was_put_off_in_another_lane_is_queued_in_the_one_that_is_asked_for(
    start: Callable[[str], Job],
) -> None:
    ask()
    put_off(start("job"))
    queue.enqueue(queue.DELIVERIES, "builtins.abs", -1, job_id="job", timeout=60)
    assert queue.named(queue.DELIVERIES).job_ids == ["job"]
    assert queue.named(queue.SNAPSHOTS).scheduled_job_registry.get_job_ids() == []


def test_asking_while_redis_is_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = redis.Redis.from_url("unix:///nowhere.sock", retry=None)
    monkeypatch.setattr("repositories.base.connections.connect", lambda **_: nowhere)
    queue.connection.cache_clear()
    ask()
    queue.drop("job")


def test_what_a_transaction_asks_for_is_queued_when_it_is_committed() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        ask("taken back")
        raise ZeroDivisionError
    with transaction.atomic():
        ask("committed")
        assert waiting() == []
    assert waiting() == ["committed"]
