"""Answers that are lost, a server that is gone, a job's time-out at the worst moment."""

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest
import redis

from repositories import repo_lock as door
from repositories.repo_lock import (
    LockLostError,
    lock_status,
    release_leftovers,
    repo_lock,
)
from repositories.repo_lock._server import LockServer, Names, new_token
from tests.support.lock_cast import KEY, LOCK, LogLines, hold_briefly, is_held, waiters
from tests.support.service import wait_until

pytestmark = pytest.mark.usefixtures("server")


def test_each_script_may_be_sent_twice(server: redis.Redis) -> None:
    names, token, lock_server = Names(KEY), new_token("1"), LockServer(timeout=2)
    other = new_token("2")
    first = lock_server.acquire(names, token, ttl=60, wait=0)
    assert lock_server.acquire(names, token, ttl=60, wait=0) == first
    assert lock_server.renew(names, token, ttl=60)
    assert lock_server.renew(names, token, ttl=60)
    lock_server.acquire(names, other, ttl=60, wait=60)
    lock_server.acquire(names, other, ttl=60, wait=60)
    assert server.lrange(f"{LOCK}:queue", 0, -1) == [other.encode()]
    assert lock_server.leave(names, token)
    assert not lock_server.leave(names, token)
    assert not lock_server.renew(names, token, ttl=60)


def test_a_time_out_in_the_middle_of_a_subscription_does_not_hold_up_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worst moment of it: an event has taken its lock, and has not begun with what the lock is for."""
    lock_server = LockServer(timeout=2)
    enter = threading.Condition.__enter__

    def ring(condition: Any) -> Any:
        if threading.current_thread() is not subscriber:  # pytest-xdist has a thread of its own here
            return enter(condition)
        condition._lock.acquire()
        raise Alarm

    def subscribe_and_close() -> None:
        with contextlib.suppress(Alarm), monkeypatch.context() as patched:
            patched.setattr(threading.Condition, "__enter__", ring)
            line = lock_server.subscribe(Names(KEY), new_token("1"))
            line.close()
        ended.put(None)

    ended: SimpleQueue[None] = SimpleQueue()
    subscriber = threading.Thread(target=subscribe_and_close, daemon=True)
    subscriber.start()
    ended.get(timeout=20)


class Alarm(Exception):
    """What a job's time-out raises, wherever the main thread happens to be."""


class LostAnswers:
    """A server that carries a command out, but whose answer never arrives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> None:
        self.left = times
        self._real = getattr(LockServer, name)
        monkeypatch.setattr(LockServer, name, lambda server, *args, **kwargs: self._call(server, *args, **kwargs))

    def _call(self, *args: object, **kwargs: object) -> object:
        answer = self._real(*args, **kwargs)
        if self.left:
            self.left -= 1
            raise redis.TimeoutError("Timeout reading from socket")
        return answer


def test_a_lost_answer_to_the_release_is_no_lost_lock(
    monkeypatch: pytest.MonkeyPatch, others: ThreadPoolExecutor
) -> None:
    with repo_lock(KEY, job_id="1"):
        waiting = others.submit(hold_briefly, "2", [])
        wait_until(lambda: waiters() == ("2",))
        LostAnswers(monkeypatch, "leave", times=1)
    waiting.result(timeout=10)
    assert not is_held()


def test_a_lost_answer_to_the_acquisition_still_yields_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    LostAnswers(monkeypatch, "acquire", times=2)
    with repo_lock(KEY, job_id="1") as held:
        (status,) = lock_status()
        assert status.fence == held.fence
    assert not is_held()


def test_a_server_that_does_not_answer_ends_a_single_try_with_its_own_error(monkeypatch: pytest.MonkeyPatch) -> None:
    LostAnswers(monkeypatch, "acquire", times=1)
    with pytest.raises(redis.TimeoutError), repo_lock(KEY, job_id="1", wait=0):
        pass
    assert not is_held(), "what the unanswered try took was given back"


def unreachable(*args: object, **kwargs: object) -> bool:
    raise redis.ConnectionError("gone")


def test_a_release_that_cannot_reach_the_server_leaves_the_lock_to_expire(
    monkeypatch: pytest.MonkeyPatch, lock_log: LogLines
) -> None:
    with repo_lock(KEY, job_id="42"):
        monkeypatch.setattr(LockServer, "leave", unreachable)
    assert lock_log(logging.WARNING) == ["Job 42 could not release the lock on owner/repo, it will expire: gone"]


def test_releasing_a_lost_lock_does_not_wait_for_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42") as held:
        held.lease.lose()
        monkeypatch.setattr(LockServer, "leave", lambda *args: pytest.fail("it asked"))


class JobTimeout(Exception):
    """Stands for the exception that an alarm raises anywhere in the main thread."""


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_time_out_in_the_midst_of_the_release_still_releases(monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    real = LockServer.leave
    rings = [JobTimeout()]

    def leave(server: LockServer, names: Names, token: str) -> bool:
        if rings and at == "before":
            raise rings.pop()
        answer = real(server, names, token)
        if rings:
            raise rings.pop()
        return answer

    monkeypatch.setattr(LockServer, "leave", leave)
    with pytest.raises(JobTimeout), repo_lock(KEY, job_id="42"):
        pass
    assert not is_held()
    assert not door._here.claims


def test_what_a_time_out_left_behind_is_released_when_the_job_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(*args: object) -> bool:
        raise JobTimeout

    with monkeypatch.context() as patch:
        patch.setattr(LockServer, "leave", ring)
        with pytest.raises(JobTimeout), repo_lock(KEY, job_id="42"):
            pass
    assert is_held()
    release_leftovers("another job")
    assert is_held()
    release_leftovers("42")
    assert not is_held()


def test_an_answer_that_comes_after_a_time_out_is_not_taken_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rings = [JobTimeout()]
    read_answer: Callable[..., object] = redis.Redis.parse_response

    def parse_response(client: redis.Redis, *args: object, **options: object) -> object:
        if rings:
            raise rings.pop()
        return read_answer(client, *args, **options)

    hold_briefly("warm up", [])
    monkeypatch.setattr(redis.Redis, "parse_response", parse_response)
    with pytest.raises(JobTimeout), repo_lock(KEY, job_id="42"):
        pass
    assert hold_briefly("43", [], 0) > 0
    assert not is_held()
