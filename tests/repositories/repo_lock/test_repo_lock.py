"""What the lock promises to one caller: a name, fences, a single try, one of many, nothing left."""

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from repositories import repo_lock as door
from repositories.repo_lock import (
    LockLostError,
    LockTimeoutError,
    _flock,
    force_release,
    janitor_lock,
    lock_status,
    release_after_kill,
    repo_lock,
    repo_locks,
)
from repositories.repo_lock._lease import clock
from repositories.repo_lock._server import LockServer, Names
from tests.support.lock_cast import KEY, LOCK, LogLines, hold_briefly, is_held, take_without_renewing, waiters
from tests.support.service import wait_until

pytestmark = pytest.mark.usefixtures("server")


def test_the_holder_is_named_and_gone_afterwards() -> None:
    with repo_lock(KEY, job_id="42") as held:
        (status,) = lock_status()
        assert (status.key, status.holder.job_id, status.holder.pid) == (KEY, "42", os.getpid())
        assert status.fence == held.fence
        assert 0 <= status.age < 5
        assert held.key == KEY
        assert not held.lost
        held.check()
    assert lock_status() == []


def test_every_key_expires_and_only_the_fence_outlives_the_lock(
    server: redis.Redis, others: ThreadPoolExecutor
) -> None:
    with repo_lock(KEY, job_id="1"):
        waiting = others.submit(hold_briefly, "2", [])
        wait_until(lambda: waiters() == ("2",))
        keys = list(server.scan_iter(f"{LOCK}*"))
        assert len(keys) == 3
        assert all(server.pttl(key) > 0 for key in keys)
    waiting.result(timeout=10)
    assert list(server.scan_iter(f"{LOCK}*")) == [f"{LOCK}:fence".encode()]
    assert 0 < server.ttl(f"{LOCK}:fence") <= 86_400


def test_fences_strictly_grow() -> None:
    fences = [hold_briefly("1", []) for _ in range(20)]
    assert fences == sorted(set(fences))


def test_a_wiped_server_gives_no_smaller_fence(server: redis.Redis) -> None:
    before = hold_briefly("1", [])
    time.sleep(0.002)
    server.delete(f"{LOCK}:fence")
    assert hold_briefly("1", []) > before


def test_a_clock_that_went_back_gives_no_smaller_fence(server: redis.Redis) -> None:
    from_the_future = hold_briefly("1", []) + 3_600_000
    server.set(f"{LOCK}:fence", from_the_future)
    assert hold_briefly("1", []) == from_the_future + 1


def test_a_lock_counts_from_the_question_and_not_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server has counted from some moment in between."""
    asked = []
    ask = LockServer.acquire

    def acquire(self: LockServer, names: Names, token: str, *, ttl: float, wait: float) -> object:
        asked.append(clock())
        return ask(self, names, token, ttl=ttl, wait=wait)

    monkeypatch.setattr(LockServer, "acquire", acquire)
    with repo_lock(KEY, job_id="42", ttl=100) as held:
        assert held.lease.valid_until <= asked[0] + 90


def test_trying_once_fails_at_once_and_names_the_holder(lock_log: LogLines) -> None:
    with repo_lock(KEY, job_id="37"):
        with pytest.raises(LockTimeoutError) as caught, repo_lock(KEY, job_id="42", wait=0):
            pass
        assert caught.value.repo_path == KEY
        assert caught.value.holder
        assert caught.value.holder.job_id == "37"
        assert abs(caught.value.holder.since - time.time()) < 60
        assert caught.value.waited == 0
    assert lock_log(logging.WARNING) == ["Job 42 did not wait for lock on owner/repo, held by job 37"]
    assert lock_log(logging.ERROR) == []


def test_the_same_job_may_take_its_lock_again() -> None:
    with repo_lock(KEY, job_id="42") as outer:
        with repo_lock(KEY, job_id="42", wait=0) as inner:
            assert inner is outer
        assert is_held()
        outer.check()
    assert not is_held()


def test_a_job_that_lost_its_lock_does_not_get_it_again() -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42") as outer:
        outer.lease.lose()
        with repo_lock(KEY, job_id="42"):
            pytest.fail("it went on")


def test_another_thread_is_not_the_same_caller_even_under_the_same_job_id(others: ThreadPoolExecutor) -> None:
    with repo_lock(KEY, job_id="42"), pytest.raises(LockTimeoutError):
        others.submit(hold_briefly, "42", [], 0).result(timeout=10)


def test_several_locks_are_taken_in_sorted_order_and_all_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    ask = LockServer.acquire

    def acquire(self: LockServer, names: Names, token: str, *, ttl: float, wait: float) -> object:
        taken.append(names.key)
        return ask(self, names, token, ttl=ttl, wait=wait)

    monkeypatch.setattr(LockServer, "acquire", acquire)
    with repo_locks([*"hgfedcba", "b"], job_id="42") as held:
        assert list(held) == taken == [*"abcdefgh"]
        assert [status.key for status in lock_status()] == taken
    assert lock_status() == []


def test_of_several_locks_one_that_is_busy_means_none() -> None:
    with repo_lock("b/b", job_id="37"):
        with pytest.raises(LockTimeoutError), repo_locks(["a/a", "b/b"], job_id="42", wait=0):
            pass
        assert [status.key for status in lock_status()] == ["b/b"]


def test_the_janitors_lock_comes_before_those_of_repositories() -> None:
    with janitor_lock(job_id="42"), repo_lock(KEY, job_id="42"), janitor_lock(job_id="42"):
        pass
    with (
        repo_lock(KEY, job_id="42"),
        pytest.raises(RuntimeError, match="must take the janitor's lock before"),
        janitor_lock(job_id="42"),
    ):
        pass


def test_there_is_one_janitor_and_its_lock_is_short() -> None:
    with janitor_lock(job_id="42"):
        (status,) = lock_status()
        assert 20 < status.expires_in <= 30
        with pytest.raises(LockTimeoutError), janitor_lock(job_id="43", wait=0):
            pass


def test_nobody_frees_a_lock_that_is_not_theirs(server: redis.Redis) -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42"):
        server.delete(LOCK)
        take_without_renewing("37")
    (status,) = lock_status()
    assert status.holder.job_id == "37"


def test_an_error_inside_is_passed_on_even_if_the_lock_was_lost(server: redis.Redis) -> None:
    with pytest.raises(ZeroDivisionError), repo_lock(KEY, job_id="42"):
        server.delete(LOCK)
        raise ZeroDivisionError


def test_a_forked_child_neither_holds_nor_frees_its_parents_lock() -> None:
    lock = repo_lock(KEY, job_id="42")
    with lock as held:
        child = os.fork()
        if child == 0:
            held_there = bool(door._here.held_by("42"))
            lock.__exit__(None, None, None)
            os._exit(held_there)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        held.check()
        assert is_held()


def test_an_operator_frees_only_what_was_seen() -> None:
    take_without_renewing("37")
    (seen,) = lock_status()
    assert force_release(seen)
    take_without_renewing("38")
    assert not force_release(seen)
    assert is_held()


def test_only_the_killed_process_of_a_job_loses_its_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    take_without_renewing("42")
    release_after_kill("41", os.getpid())
    release_after_kill("42", os.getpid() + 1)
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "elsewhere")
        release_after_kill("42", os.getpid())
    assert is_held()
    release_after_kill("42", os.getpid())
    assert not is_held()


def test_keys_of_all_kinds_are_kept_apart() -> None:
    keys = ["a/b", "a%2Fb", "a/b:queue", "delivery:1:2", "ä/ü", "x" * 300, "x" * 301, "{braces}", "with space"]
    with repo_locks(keys, job_id="42"):
        assert {status.key for status in lock_status()} == set(keys)
    assert len({_flock.path_of(key) for key in keys}) == len(keys)
    assert all(len(_flock.path_of(key).name) < 255 for key in keys)
