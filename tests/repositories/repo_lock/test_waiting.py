"""Waiters: woken by the release, first come, first served; a dead or frozen one holds nobody up."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
import redis
from rq.utils import as_text

from repositories.repo_lock import (
    LockTimeoutError,
    repo_lock,
    shutdown_repo_lock,
)
from repositories.repo_lock._server import YOUR_TURN, LockServer, Names, new_token
from tests.support.lock_cast import KEY, LOCK, LogLines, hold_briefly, is_held, take_without_renewing, waiters
from tests.support.service import wait_until

pytestmark = pytest.mark.usefixtures("server")


def test_a_waiter_is_woken_by_the_release(others: ThreadPoolExecutor, lock_log: LogLines, no_net: None) -> None:
    with repo_lock(KEY, job_id="37"):
        waiting = others.submit(hold_briefly, "42", [], 30)
        wait_until(lambda: waiters() == ("42",))
        assert not waiting.done()
    waiting.result(timeout=30)
    assert lock_log(logging.WARNING) == ["Job 42 waiting for lock on owner/repo, held by job 37"]
    assert sorted(lock_log(logging.DEBUG)) == [
        "Job 37 acquired lock on owner/repo",
        "Job 37 released lock on owner/repo",
        "Job 42 acquired lock on owner/repo",
        "Job 42 released lock on owner/repo",
    ]


def test_waiting_too_long_is_an_ordinary_error_and_leaves_the_line(server: redis.Redis, lock_log: LogLines) -> None:
    with repo_lock(KEY, job_id="37"):
        with pytest.raises(LockTimeoutError) as caught, repo_lock(KEY, job_id="42", wait=0.2):
            pass
        assert 0.2 <= caught.value.waited < 5
        assert caught.value.holder
        assert caught.value.holder.job_id == "37"
        assert not server.exists(f"{LOCK}:queue")
    (line,) = lock_log(logging.ERROR)
    assert line == (
        f"Job 42 timed out after {caught.value.waited:.1f} s waiting for lock on owner/repo, held by job 37"
    )


def test_waiters_are_served_in_the_order_in_which_they_came(others: ThreadPoolExecutor) -> None:
    order: list[str] = []
    jobs = [str(number) for number in range(8)]
    with repo_lock(KEY, job_id="first"):
        waiting = []
        for job in jobs:
            waiting.append(others.submit(hold_briefly, job, order))
            wait_until(lambda: len(waiters()) == len(waiting))
    fences = [future.result(timeout=30) for future in waiting]
    assert order == jobs
    assert fences == sorted(set(fences))


@contextmanager
def listening_waiter(server: redis.Redis, job_id: str) -> Iterator[None]:
    """The oldest waiter, which listens like a frozen process: it is there, but never comes."""
    token = new_token(job_id)
    frozen = LockServer(timeout=2)
    with closing(frozen.subscribe(Names(KEY), token)):
        with repo_lock(KEY, job_id="before"):
            frozen.acquire(Names(KEY), token, ttl=60, wait=60)
        yield


def test_a_newcomer_does_not_barge_in_before_the_one_whose_turn_it_is(server: redis.Redis) -> None:
    with listening_waiter(server, "slow"):
        server.pexpire(f"{LOCK}:turn", 60_000)
        with pytest.raises(LockTimeoutError) as caught, repo_lock(KEY, job_id="hasty", wait=0):
            pass
        assert caught.value.holder
        assert caught.value.holder.job_id == "slow"


def test_a_dead_waiter_is_skipped_at_once(server: redis.Redis) -> None:
    names, dead, alive, lock_server = Names(KEY), new_token("dead"), new_token("alive"), LockServer(timeout=2)
    holder = take_without_renewing("holder")
    with closing(lock_server.subscribe(names, alive)) as line:
        lock_server.acquire(names, dead, ttl=60, wait=60)
        lock_server.acquire(names, alive, ttl=60, wait=60)
        assert waiters() == ("alive",), "a waiter that does not listen is not shown"
        lock_server.leave(names, holder)
        assert server.get(f"{LOCK}:turn") == alive.encode()
        assert line.get_message(timeout=5)["data"] == YOUR_TURN


def test_a_waiter_that_leaves_when_it_is_its_turn_passes_the_turn_on(server: redis.Redis) -> None:
    names, first, second, lock_server = Names(KEY), new_token("first"), new_token("second"), LockServer(timeout=2)
    holder = take_without_renewing("holder")
    with closing(lock_server.subscribe(names, first)), closing(lock_server.subscribe(names, second)):
        lock_server.acquire(names, first, ttl=60, wait=60)
        lock_server.acquire(names, second, ttl=60, wait=60)
        lock_server.leave(names, holder)
        assert server.get(f"{LOCK}:turn") == first.encode()
        lock_server.leave(names, first)
        assert server.get(f"{LOCK}:turn") == second.encode()


@pytest.mark.slow
def test_a_frozen_waiter_loses_its_turn_after_a_second(
    server: redis.Redis, others: ThreadPoolExecutor, no_net: None
) -> None:
    with listening_waiter(server, "frozen"):
        assert server.pttl(f"{LOCK}:turn") <= 1000
        others.submit(hold_briefly, "2", [], 60).result(timeout=30)


def test_the_second_in_line_is_told_when_to_look_after_a_frozen_first(
    server: redis.Redis, others: ThreadPoolExecutor, no_net: None
) -> None:
    """Long before its own time is up: at that moment it would ask once more, and get the lock without being told."""
    token, frozen = new_token("frozen"), LockServer(timeout=2)
    with closing(frozen.subscribe(Names(KEY), token)):
        with repo_lock(KEY, job_id="before"):
            frozen.acquire(Names(KEY), token, ttl=60, wait=60)
            waiting = others.submit(hold_briefly, "2", [], 600)
            wait_until(lambda: len(waiters()) == 2)
        waiting.result(timeout=30)


def test_a_dead_holders_lock_is_free_after_its_ttl(others: ThreadPoolExecutor, no_net: None) -> None:
    take_without_renewing("dead", ttl=0.5)
    others.submit(hold_briefly, "2", [], 30).result(timeout=30)


def test_a_wake_up_that_is_lost_is_made_up_for(
    server: redis.Redis, others: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repositories.repo_lock._claim._RECHECK", 0.1)
    take_without_renewing("37")
    waiting = others.submit(hold_briefly, "42", [], 30)
    wait_until(lambda: waiters() == ("42",))
    server.delete(LOCK)
    waiting.result(timeout=30)


def test_shutdown_lets_waiters_give_up_and_holders_release(others: ThreadPoolExecutor, lock_log: LogLines) -> None:
    with repo_lock(KEY, job_id="37"):
        waiting: Future[int] = others.submit(hold_briefly, "42", [], 600)
        wait_until(lambda: waiters() == ("42",))
        shutdown_repo_lock()
        with pytest.raises(LockTimeoutError):
            waiting.result(timeout=30)
    assert not is_held()
    assert "Job 42 stopped waiting for lock on owner/repo: shutting down" in lock_log(logging.WARNING)


def test_waits_are_counted_by_how_they_ended(server: redis.Redis, others: ThreadPoolExecutor, no_net: None) -> None:
    with repo_lock(KEY, job_id="free"):
        pass
    assert not server.exists("docora:metrics"), "a lock that was free costs nothing"
    with repo_lock(KEY, job_id="37"):
        waiting = others.submit(hold_briefly, "42", [], 30)
        wait_until(lambda: waiters() == ("42",))
        for wait in (0, 0.1):
            with pytest.raises(LockTimeoutError), repo_lock(KEY, job_id="43", wait=wait):
                pass
    waiting.result(timeout=30)
    found = {as_text(field): float(value) for field, value in server.hgetall("docora:metrics").items()}
    outcomes = {name: number for name, number in found.items() if name.startswith("lock_waits")}
    assert outcomes == {
        "lock_waits|repository|handed-over": 1,
        "lock_waits|repository|gave-up": 1,
        "lock_waits|repository|did-not-wait": 1,
    }
    assert found["lock_wait_seconds|repository|sum"] > 0.1
