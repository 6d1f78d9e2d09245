"""A work horse stays for more than one job, and is none the worse for the worker that drives it."""

import os
import signal
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import psutil
import pytest
from rq import Queue
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from docora import horse
from tests.journeys.lock_cast import Cast, send, work

pytestmark = pytest.mark.slow
JOBS = "tests.journeys.horse_jobs"


@pytest.fixture
def do(cast: Cast) -> Callable[..., Job]:
    queue = Queue("snapshots", connection=cast.server, serializer=JSONSerializer)

    def do(function: str = "note", **kwargs: float) -> Job:
        return queue.enqueue_call(f"{JOBS}.{function}", kwargs={"journal": str(cast.journal), **kwargs}, result_ttl=0)

    return do


@pytest.fixture
def worker(cast: Cast) -> BaseProcess:
    return cast.start(work)


def horses(cast: Cast, count: int) -> list[int]:
    """Who has done the jobs, once so many are done and the worker waits for more."""
    cast.until(lambda: len(cast.journal.read_text().split()) == count if cast.journal.exists() else False)
    cast.until(lambda: cast.server.scard("rq:workers") == 1)
    (name,) = cast.server.smembers("rq:workers")
    cast.until(lambda: cast.server.hget(name, "state") == b"idle")
    return [int(pid) for pid in cast.journal.read_text().split()]


def has_ended(pid: int) -> bool:
    """Also if nobody has asked for its exit status yet, as for an orphan in a container."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_one_horse_does_one_job_after_the_other(cast: Cast, worker: BaseProcess, do: Callable[..., Job]) -> None:
    for _ in range(5):
        do()
    first, *others = horses(cast, 5)
    assert first != worker.pid
    assert set(others) == {first}
    assert not cast.server.keys("rq:job:*"), "a job was not tidied up"
    assert not cast.server.keys("rq:execution*"), "a job counts as being executed"


@pytest.mark.parametrize("last", ["note_and_fail", "note_and_fill_memory"])
def test_after_a_job_that_failed_or_was_large_comes_a_fresh_horse(
    cast: Cast, worker: BaseProcess, do: Callable[..., Job], last: str
) -> None:
    jobs = [do(), do(last), do()]
    one, same, fresh = horses(cast, 3)
    assert one == same != fresh
    statuses = [job.get_status(refresh=True) if Job.exists(job.id, cast.server) else None for job in jobs]
    assert statuses == [None, JobStatus.FAILED if last == "note_and_fail" else None, None]


def test_a_horse_that_has_grown_old_makes_room(
    cast: Cast, do: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horse, "LIFETIME", 0.5)
    cast.start(work)
    do()
    do(seconds=0.6)
    do()
    one, same, fresh = horses(cast, 3)
    assert one == same != fresh
    assert not psutil.pid_exists(one)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_horse_that_dies_while_it_waits_costs_no_job(
    cast: Cast, worker: BaseProcess, do: Callable[..., Job], number: signal.Signals
) -> None:
    do()
    (idle,) = horses(cast, 1)
    os.kill(idle, number)
    do()
    _, fresh = horses(cast, 2)
    assert fresh != idle
    assert not psutil.pid_exists(idle)
    assert not cast.server.keys("rq:failed:*")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_horse_outlives_its_worker(
    cast: Cast, worker: BaseProcess, do: Callable[..., Job], number: signal.Signals
) -> None:
    do()
    (idle,) = horses(cast, 1)
    send(worker, number)
    worker.join(10)
    cast.until(lambda: has_ended(idle))


def test_a_horse_whose_worker_is_killed_finishes_its_job(
    cast: Cast, worker: BaseProcess, do: Callable[..., Job]
) -> None:
    do()
    (busy,) = horses(cast, 1)
    do(seconds=1.0)
    (name,) = cast.server.smembers("rq:workers")
    cast.until(lambda: cast.server.hget(name, "current_job"))
    send(worker, signal.SIGKILL)
    cast.until(lambda: cast.journal.read_text().split() == [str(busy)] * 2)
    cast.until(lambda: has_ended(busy))


def test_who_is_interrupted_in_waiting_can_wait_again() -> None:
    """The worker's alarm may ring when the mark has been seen and nothing has come of it yet."""
    order = horse.Order(job_id="job", queue="queue", execution_id="execution")
    reins = horse.Reins()
    pid = os.fork()
    if pid == 0:
        os._exit(7 if reins.in_the_horse().next_order() == order else 1)
    reins.in_the_worker(pid)
    assert [reins.has_done_its_job() for _ in range(2)] == [True, True]
    assert reins.hand(order)
    assert not reins.has_done_its_job()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not reins.hand(order)
    reins.drop()
