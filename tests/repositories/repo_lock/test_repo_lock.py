"""What the lock promises inside one process: on fakeredis, on a real Valkey, and on any server that is named.

DOCORA_TEST_REDIS_URL names the third; only keys that begin with `docora:repo-lock:` are touched there.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import redis
from pytest_django import Settings

from repositories import repo_lock as door
from repositories.repo_lock import (
    LockLostError,
    LockTimeoutError,
    _flock,
    force_release,
    janitor_lock,
    lock_status,
    release_after_kill,
    release_leftovers,
    repo_lock,
    repo_locks,
    shutdown_repo_lock,
)
from repositories.repo_lock._server import YOUR_TURN, LockServer, Names, new_token

KEY = "owner/repo"
LOCK = "docora:repo-lock:{owner/repo}"
NAMED_SERVER = os.environ.get("DOCORA_TEST_REDIS_URL", "")
LogLines = Callable[[int], list[str]]
SERVERS = ["fake_redis", "valkey", *(["named_server"] if NAMED_SERVER else [])]


@pytest.fixture
def named_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    def connect(*, timeout: float = 5) -> redis.Redis:
        return redis.Redis.from_url(NAMED_SERVER, socket_timeout=timeout)

    monkeypatch.setattr("repositories.base.connections.connect", connect)
    with connect() as client:
        yield client
        for key in client.scan_iter("docora:repo-lock:*"):
            client.delete(key)


@pytest.fixture(autouse=True, params=SERVERS)
def server(request: pytest.FixtureRequest, settings: Settings, tmp_path: Path) -> Iterator[redis.Redis]:
    settings.REPOS_BASE_PATH = tmp_path
    settings.REPO_LOCK_WAIT = 10
    yield request.getfixturevalue(request.param)
    shutdown_repo_lock()


@pytest.fixture
def others() -> Iterator[ThreadPoolExecutor]:
    """Threads that play other jobs."""
    with ThreadPoolExecutor(max_workers=16) as pool:
        yield pool
        door.stop_waiting()


@pytest.fixture
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the re-check every two seconds: what happens in time then happens by a wake-up."""
    monkeypatch.setattr("repositories.repo_lock._claim._RECHECK", 60.0)


@pytest.fixture
def lock_log(caplog: pytest.LogCaptureFixture) -> LogLines:
    caplog.set_level(logging.DEBUG, logger="docora.repo_lock")

    def lines(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    return lines


def until(condition: Callable[[], object], patience: float = 10) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def waiters(key: str = KEY) -> list[str]:
    return [waiter for status in lock_status() if status.key == key for waiter in status.waiters]


def is_held(key: str = KEY) -> bool:
    return any(status.key == key for status in lock_status())


def hold_briefly(job_id: str, order: list[str], wait: float = 10) -> int:
    with repo_lock(KEY, job_id=job_id, wait=wait) as held:
        order.append(job_id)
        return held.fence


def take_without_renewing(job_id: str, ttl: float = 60) -> str:
    """Hold the lock as a process does that has just died; returns its token."""
    token = new_token(job_id)
    LockServer(timeout=2).acquire(Names(KEY), token, ttl=ttl, wait=0)
    return token


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
        until(lambda: waiters() == ["2"])
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


def test_a_waiter_is_woken_by_the_release(others: ThreadPoolExecutor, lock_log: LogLines, no_net: None) -> None:
    with repo_lock(KEY, job_id="37"):
        waiting = others.submit(hold_briefly, "42", [], 30)
        until(lambda: waiters() == ["42"])
        assert not waiting.done()
    waiting.result(timeout=10)
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
            until(lambda: len(waiters()) == len(waiting))
    fences = [future.result(timeout=10) for future in waiting]
    assert order == jobs
    assert fences == sorted(set(fences))


def test_a_newcomer_does_not_barge_in_before_the_one_whose_turn_it_is(server: redis.Redis) -> None:
    with listening_waiter(server, "slow"):
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
        assert waiters() == ["alive"], "a waiter that does not listen is not shown"
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


@contextmanager
def listening_waiter(server: redis.Redis, job_id: str) -> Iterator[None]:
    """The oldest waiter, which listens like a frozen process: it is there, but never comes."""
    token = new_token(job_id)
    frozen = LockServer(timeout=2)
    with closing(frozen.subscribe(Names(KEY), token)):
        with repo_lock(KEY, job_id="before"):
            frozen.acquire(Names(KEY), token, ttl=60, wait=60)
        yield


@pytest.mark.slow
def test_a_frozen_waiter_loses_its_turn_after_a_second(
    server: redis.Redis, others: ThreadPoolExecutor, no_net: None
) -> None:
    with listening_waiter(server, "frozen"):
        started = time.monotonic()
        others.submit(hold_briefly, "2", [], 30).result(timeout=10)
        assert time.monotonic() - started > 0.5


def test_the_second_in_line_is_told_when_to_look_after_a_frozen_first(
    server: redis.Redis, others: ThreadPoolExecutor, no_net: None
) -> None:
    token, frozen = new_token("frozen"), LockServer(timeout=2)
    with closing(frozen.subscribe(Names(KEY), token)):
        with repo_lock(KEY, job_id="before"):
            frozen.acquire(Names(KEY), token, ttl=60, wait=60)
            waiting = others.submit(hold_briefly, "2", [], 30)
            until(lambda: len(waiters()) == 2)
        waiting.result(timeout=10)


def test_a_dead_holders_lock_is_free_after_its_ttl(others: ThreadPoolExecutor, no_net: None) -> None:
    take_without_renewing("dead", ttl=0.5)
    others.submit(hold_briefly, "2", [], 30).result(timeout=10)


def test_the_same_job_may_take_its_lock_again() -> None:
    with repo_lock(KEY, job_id="42") as outer:
        with repo_lock(KEY, job_id="42", wait=0) as inner:
            assert inner is outer
        assert is_held()
        outer.check()
    assert not is_held()


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
    with repo_locks(["b/b", "c/c", "a/a", "b/b"], job_id="42") as held:
        assert list(held) == taken == ["a/a", "b/b", "c/c"]
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


@pytest.mark.slow
def test_a_lock_is_renewed_while_its_holder_lives() -> None:
    with repo_lock(KEY, job_id="42", ttl=0.5) as held:
        time.sleep(1.5)
        held.check()
        with pytest.raises(LockTimeoutError), repo_lock(KEY, job_id="43", wait=0):
            pass


@pytest.mark.slow
def test_a_short_lease_taken_beside_a_long_one_is_renewed_too() -> None:
    with repo_lock("long/lease", job_id="42"), repo_lock(KEY, job_id="42", ttl=0.5) as held:
        time.sleep(1.0)
        held.check()


@pytest.mark.slow
def test_renewal_ends_with_the_jobs_time_out(monkeypatch: pytest.MonkeyPatch, lock_log: LogLines) -> None:
    monkeypatch.setattr("repositories.repo_lock._lease._GRACE_AFTER_TIMEOUT", 0.2)
    rang: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rang.append(number))
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(LockLostError), repo_lock(KEY, job_id="hung", ttl=0.5) as held:
            until(lambda: held.lost)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert rang
    assert lock_log(logging.ERROR) == ["Job hung lost the lock on owner/repo"]


@pytest.mark.slow
@pytest.mark.parametrize("wiped", [True, False], ids=["wiped", "taken by another"])
def test_losing_the_lock_kills_the_guarded_child(server: redis.Redis, wiped: bool) -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42", ttl=0.6) as held:
        with held.inherit() as fd:
            child = subprocess.Popen(["sleep", "60"], start_new_session=True, pass_fds=(fd,))
        with held.guarding(child.pid):
            server.delete(LOCK)
            if not wiped:
                take_without_renewing("37")
            assert child.wait(timeout=10) == -signal.SIGKILL
    assert is_held() is not wiped


@pytest.mark.slow
def test_a_child_started_after_the_loss_is_killed_at_once() -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42", ttl=0.3) as held:
        door._here.watchdog.forget(held.lease)
        until(lambda: held.lost)
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        with held.guarding(child.pid):
            assert child.wait(timeout=10) == -signal.SIGKILL


def test_a_lost_lock_is_not_inherited(server: redis.Redis) -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42", ttl=0.3) as held:
        door._here.watchdog.forget(held.lease)
        until(lambda: held.lost)
        with held.inherit():
            pytest.fail("a child could have been started")


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
        until(lambda: waiters() == ["2"])
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


def test_a_release_that_cannot_reach_the_server_leaves_the_lock_to_expire(
    monkeypatch: pytest.MonkeyPatch, lock_log: LogLines
) -> None:
    with repo_lock(KEY, job_id="42"):
        monkeypatch.setattr(LockServer, "leave", unreachable)
    assert lock_log(logging.WARNING) == ["Job 42 could not release the lock on owner/repo, it will expire: gone"]


def unreachable(*args: object, **kwargs: object) -> bool:
    raise redis.ConnectionError("gone")


@pytest.mark.slow
def test_releasing_a_lost_lock_does_not_wait_for_a_server_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LockServer, "renew", unreachable)
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42", ttl=0.5) as held:
        until(lambda: held.lost)
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


def test_shutdown_lets_waiters_give_up_and_holders_release(others: ThreadPoolExecutor, lock_log: LogLines) -> None:
    with repo_lock(KEY, job_id="37"):
        waiting: Future[int] = others.submit(hold_briefly, "42", [], 60)
        until(lambda: waiters() == ["42"])
        started = time.monotonic()
        shutdown_repo_lock()
        with pytest.raises(LockTimeoutError):
            waiting.result(timeout=10)
        assert time.monotonic() - started < 5
    assert not is_held()
    assert "Job 42 stopped waiting for lock on owner/repo: shutting down" in lock_log(logging.WARNING)


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
