"""The lock in the hands of real RQ workers: killed horses, time-outs, shutdowns, retries."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings
from rq import Queue, Retry
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from repositories.base import queue_names
from repositories.repo_lock import lock_status, repo_lock
from tests.support import warm_python
from tests.support.lock_cast import KEY, Cast, send, waiters, work

pytestmark = pytest.mark.slow
FETCH = "tests.support.lock_jobs.fetch"


@pytest.fixture
def enqueue(cast: Cast, settings: Settings) -> Callable[..., Job]:
    settings.REPO_LOCK_WAIT = 5
    queue = Queue("snapshots", connection=cast.server, serializer=JSONSerializer)

    def enqueue(job_id: str, *, seconds: float, ttl: float = 60, wait: float = 60, **options: Any) -> Job:
        kwargs = {"journal": str(cast.journal), "seconds": seconds, "ttl": ttl, "wait": wait}
        return queue.enqueue_call(FETCH, kwargs=kwargs, job_id=job_id, unique=True, result_ttl=0, **options)

    return enqueue


def horse() -> int:
    """The process that holds the lock now."""
    (status,) = lock_status()
    return status.holder.pid


@pytest.mark.parametrize("worker_too", [False, True], ids=["horse", "horse and worker"])
def test_a_killed_horse_frees_its_repository(cast: Cast, enqueue: Callable[..., Job], worker_too: bool) -> None:
    """With its worker alive, long before the TTL; with its worker killed too, after the TTL."""
    cast.start(work)
    cast.start(work)
    enqueue("killed", seconds=30, ttl=2 if worker_too else 60)
    cast.until(lambda: "killed" in cast.entries())
    enqueue("waiter", seconds=0.2)
    cast.until(lambda: waiters() == ("waiter",))
    holder = horse()
    if worker_too:
        os.kill(parent_of(holder), signal.SIGKILL)
    with suppress(ProcessLookupError):  # Linux has killed it together with its worker
        os.kill(holder, signal.SIGKILL)
    assert cast.until(lambda: "waiter" in cast.entries(), patience=30) < (30 if worker_too else 5)
    cast.until(lambda: not lock_status())
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()[1])


def test_a_job_that_times_out_while_it_holds_frees_its_repository(cast: Cast, enqueue: Callable[..., Job]) -> None:
    job = enqueue("slow", seconds=60, timeout=3)
    cast.start(work, burst=True).join(40)
    assert job.get_status() == JobStatus.FAILED
    assert cast.entries() == ["slow"]
    cast.assert_nothing_is_left()


def test_a_job_that_times_out_while_it_waits_leaves_the_line(cast: Cast, enqueue: Callable[..., Job]) -> None:
    job = enqueue("patient", seconds=1, timeout=1)
    with repo_lock(KEY, job_id="holder"):
        cast.start(work, burst=True).join(20)
        assert waiters() == ()
    assert job.get_status() == JobStatus.FAILED
    assert cast.entries() == []
    cast.assert_nothing_is_left()


def test_a_worker_that_is_to_end_does_not_wait_for_a_lock(cast: Cast, enqueue: Callable[..., Job]) -> None:
    job = enqueue("patient", seconds=1)
    with repo_lock(KEY, job_id="holder"):
        worker = cast.start(work)
        cast.until(lambda: waiters() == ("patient",))
        send(worker, signal.SIGTERM)
        worker.join(10)
        assert worker.exitcode == 0
    assert job.get_status() == JobStatus.SCHEDULED
    cast.assert_nothing_is_left()


def test_waiting_for_a_lock_uses_up_no_attempt_for_real_failures(cast: Cast, enqueue: Callable[..., Job]) -> None:
    job = enqueue("patient", seconds=0.1, wait=0.1, retry=Retry(max=2))
    with repo_lock(KEY, job_id="holder"):
        cast.start(work, burst=True).join(20)
        job = Job.fetch(job.id, connection=cast.server, serializer=JSONSerializer)
        assert (job.get_status(), job.retries_left, job.number_of_retries) == (JobStatus.SCHEDULED, 2, 1)
    worker = cast.start(work)
    cast.until(lambda: cast.entries() == ["patient"])
    cast.until(lambda: not Job.exists("patient", connection=cast.server))
    send(worker, signal.SIGTERM)
    worker.join(10)
    cast.assert_nothing_is_left()


def test_the_command_starts_docoras_worker_on_all_queues(cast: Cast, valkey_socket: Path) -> None:
    url = f"unix://{valkey_socket}"
    for name in queue_names.ALL:
        queue = Queue(name, connection=cast.server, serializer=JSONSerializer)
        queue.enqueue_call("time.sleep", args=(0,), result_ttl=0)
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(cast.folder), "REDIS_URL": url}
    environment["DJANGO_SETTINGS_MODULE"] = "tests.support.service_settings"
    result = warm_python.run("rqworker", "--burst", environment=environment, timeout=60)
    assert result.returncode == 0, result.stderr
    assert not any(Queue(name, connection=cast.server).count for name in queue_names.ALL)
    assert not cast.server.keys("rq:failed:*")
