"""A work horse stays for more than one job; killed, frozen or old, it costs no other job."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from types import SimpleNamespace

import psutil
import pytest
from rq import Queue, Worker
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer

from docora.processes.kept_horse import RQ_INTERNALS, HorseKeepingWorker, channel
from repositories import messages
from tests.support.lock_cast import Cast, send, work

pytestmark = pytest.mark.slow
JOBS = "tests.support.horse_jobs"


@pytest.fixture
def do(cast: Cast) -> Callable[..., Job]:
    queue = Queue("snapshots", connection=cast.server, serializer=JSONSerializer)

    def do(function: str = "note", **kwargs: float) -> Job:
        return queue.enqueue_call(f"{JOBS}.{function}", kwargs={"journal": str(cast.journal), **kwargs}, result_ttl=0)

    return do


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a horse that begins late is not taken for a frozen one."""
    monkeypatch.setattr(channel, "_PATIENCE", 60.0)


@pytest.fixture
def worker(cast: Cast) -> BaseProcess:
    return cast.start(work)


def horses(cast: Cast, count: int) -> list[int]:
    """The processes that have done the jobs, once so many are done and the worker waits for more."""
    cast.until(lambda: len(cast.journal.read_text().split()) == count if cast.journal.exists() else False)
    cast.until(lambda: cast.server.scard("rq:workers") == 1)
    (name,) = cast.server.smembers("rq:workers")
    cast.until(lambda: cast.server.hget(name, "state") == b"idle")
    return [int(pid) for pid in cast.journal.read_text().split()]


def has_ended(pid: int) -> bool:
    """Also if nobody has asked for its exit status yet, as for an orphan in a container."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


def test_one_horse_does_one_job_after_the_other(cast: Cast, worker: BaseProcess, do: Callable[..., Job]) -> None:
    for _ in range(5):
        do()
    first, *others = horses(cast, 5)
    assert first != worker.pid
    assert set(others) == {first}
    assert not cast.server.keys("rq:job:*"), "a job was not tidied up"
    assert not cast.server.keys("rq:execution*"), "a job counts as being executed"


def test_a_job_goes_to_a_worker_that_keeps_a_horse(cast: Cast, do: Callable[..., Job]) -> None:
    def waiting() -> list[int]:
        """For how many seconds each worker has stood in line."""
        return sorted(int(client["idle"]) for client in cast.server.client_list() if "b" in client["flags"])

    for _ in range(2):
        cast.start(work)
    cast.until(lambda: len(waiting()) == 2)
    for count in range(1, 4):
        do()
        cast.until(lambda: cast.journal.exists() and len(cast.journal.read_text().split()) == count)  # noqa: B023
        # The one without a horse has gone to the end of the line since.
        cast.until(lambda: (line := waiting())[0] + 1 < line[-1] and len(line) == 2)
    assert len(set(cast.journal.read_text().split())) == 1


@pytest.mark.parametrize("last", ["note_and_fail", "note_and_fill_memory", "note_and_come_rarely"])
def test_after_a_job_that_failed_was_large_or_is_rare_comes_a_fresh_horse(
    cast: Cast, do: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    monkeypatch.setattr(messages, "RECONCILE", f"{JOBS}.note_and_come_rarely")
    cast.start(work)
    jobs = [do(), do(last), do()]
    one, same, fresh = horses(cast, 3)
    assert one == same != fresh
    statuses = [job.get_status(refresh=True) if Job.exists(job.id, cast.server) else None for job in jobs]
    assert statuses == [None, JobStatus.FAILED if last == "note_and_fail" else None, None]


def test_a_horse_that_has_grown_old_makes_room(
    cast: Cast, do: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = cast.folder / "clock"  # the worker is another process: its clock is the time of this file
    clock.touch()
    os.utime(clock, (0, 0))
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: clock.stat().st_mtime))
    cast.start(work)
    do()
    do()
    one, same = horses(cast, 2)
    os.utime(clock, (channel.LIFETIME + 1,) * 2)
    do()
    *_, fresh = horses(cast, 3)
    assert one == same != fresh
    assert not psutil.pid_exists(one)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_a_horse_that_dies_while_it_waits_costs_no_job(
    cast: Cast, do: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(channel, "_PATIENCE", 0.5)
    cast.start(work)
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


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_busy_horse_ends_with_its_killed_worker(cast: Cast, worker: BaseProcess, do: Callable[..., Job]) -> None:
    do()
    (busy,) = horses(cast, 1)
    job = do(seconds=60)
    cast.until(lambda: job.get_status(refresh=True) == JobStatus.STARTED)
    send(worker, signal.SIGKILL)
    cast.until(lambda: has_ended(busy))


def test_no_other_child_hides_from_the_horse_that_its_worker_is_gone() -> None:
    """Such as RQ's scheduler, which is forked anew when it has died."""
    ends = channel.HorseChannel()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if ends.horse_end().next_order() is None else 1)
    ends.keep_worker_end(pid)
    other = os.fork()
    if other == 0:
        signal.pause()
    assert ends.wait_for_done()
    ends.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)


def test_a_job_that_outlasts_the_alarm_of_its_worker_keeps_its_horse(
    cast: Cast, worker: BaseProcess, do: Callable[..., Job]
) -> None:
    do()
    do(seconds=5.5)
    do()
    assert len(set(horses(cast, 3))) == 1


def test_a_horse_that_is_killed_in_a_later_job_costs_that_job_alone(
    cast: Cast, worker: BaseProcess, do: Callable[..., Job]
) -> None:
    do()
    (busy,) = horses(cast, 1)
    killed = do(seconds=30)
    cast.until(lambda: killed.get_status(refresh=True) == JobStatus.STARTED)
    os.kill(busy, signal.SIGKILL)
    do()
    _, fresh = horses(cast, 2)
    assert fresh != busy
    assert killed.get_status(refresh=True) == JobStatus.FAILED


@pytest.mark.parametrize("signals", [1, 2], ids=["warm", "cold"])
def test_a_worker_that_is_to_end_ends_its_busy_horse(
    cast: Cast, worker: BaseProcess, do: Callable[..., Job], signals: int
) -> None:
    """At once when it is asked twice; else when the job is done."""
    do()
    (busy,) = horses(cast, 1)
    job = do(seconds=2 if signals == 1 else 60)
    cast.until(lambda: job.get_status(refresh=True) == JobStatus.STARTED)
    for _ in range(signals):
        send(worker, signal.SIGTERM)
        worker.join(1.2)  # a second signal within a second counts as the same one
    worker.join(15)
    assert worker.exitcode == 0
    assert has_ended(busy)
    assert len(cast.journal.read_text().split()) == (2 if signals == 1 else 1)


def test_a_wait_for_the_end_of_a_job_can_be_repeated() -> None:
    """RQ's alarm may interrupt the worker when the byte has been seen and nothing has come of it yet."""
    order = channel.Order(job_id="job", queue="queue", execution_id="execution")
    ends = channel.HorseChannel()
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(7 if ends.horse_end().next_order() == order else 1)
        finally:
            os._exit(1)
    ends.keep_worker_end(pid)
    assert [ends.wait_for_done() for _ in range(2)] == [True, True]
    assert ends.hand(order)
    assert not ends.wait_for_done()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert not ends.hand(order)
    ends.close()


def test_a_worker_does_not_take_its_longest_wait_for_a_broken_connection(cast: Cast) -> None:
    worker = HorseKeepingWorker(["snapshots"], connection=cast.server, worker_ttl=30)
    without_horse = worker.dequeue_timeout
    worker._channel = channel.HorseChannel()
    assert without_horse < worker.dequeue_timeout < cast.server.connection_pool.connection_kwargs["socket_timeout"]
    worker._channel.close()


def test_each_part_of_rq_that_a_kept_horse_relies_on_is_named_and_still_there(cast: Cast) -> None:
    worker = Worker(["snapshots"], connection=cast.server)
    assert {name for name in RQ_INTERNALS if not hasattr(worker, name)} == set()
    overridden = {name for name in vars(HorseKeepingWorker) if hasattr(Worker, name) and not name.startswith("__")}
    assert overridden - {"teardown"} <= set(RQ_INTERNALS)
