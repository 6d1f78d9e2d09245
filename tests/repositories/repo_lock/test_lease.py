"""When a lease is renewed, and when it is over: by a clock that the test moves."""

import logging
import signal
from collections.abc import Callable

import pytest

from repositories.repo_lock._lease import Lease
from tests.support.lock_cast import LogLines

START = 1000.0


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("repositories.repo_lock._lease.clock", clock)
    job_times_out_in(None, monkeypatch)
    return clock


def job_times_out_in(seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "getitimer", lambda which: (seconds or 0.0, 0.0))


def lease(clock: Clock, renew: Callable[[], bool]) -> Lease:
    """A lease of 30 s."""
    return Lease(key="owner/repo", job_id="42", ttl=30, asked=clock.now, renew=renew)


def tend_every_second(lease: Lease, clock: Clock, seconds: int) -> None:
    for _ in range(seconds):
        if not lease.tend():
            return
        clock.now += 1


def test_it_is_renewed_at_a_third_of_the_ttl(clock: Clock) -> None:
    renewed: list[float] = []

    def renew() -> bool:
        renewed.append(clock.now - START)
        return True

    kept = lease(clock, renew)
    tend_every_second(kept, clock, 60)
    assert renewed == [10, 20, 30, 40, 50]
    assert not kept.lost


def test_its_holder_gives_it_up_before_the_server_does(clock: Clock) -> None:
    cut_off = lease(clock, lambda: True)
    clock.now += 26.9
    assert not cut_off.lost
    clock.now += 0.2
    assert cut_off.lost


def test_a_renewal_counts_from_its_question_and_not_from_its_answer(clock: Clock) -> None:
    """The server has counted from some moment in between."""

    def renew_slowly() -> bool:
        clock.now += 5
        return True

    kept = lease(clock, renew_slowly)
    clock.now += 10
    assert kept.tend()
    assert kept.valid_until == START + 10 + 27


def test_renewal_is_tried_again_until_the_lease_ends(clock: Clock, lock_log: LogLines) -> None:
    def fail() -> bool:
        raise ConnectionError("gone")

    cut_off = lease(clock, fail)
    tend_every_second(cut_off, clock, 60)
    assert clock.now == START + 27
    assert cut_off.lost
    assert lock_log(logging.WARNING) == ["Job 42 could not renew the lock on owner/repo: gone"] * 17
    assert lock_log(logging.ERROR) == ["Job 42 lost the lock on owner/repo"]


def test_a_refused_renewal_ends_it_at_once(clock: Clock) -> None:
    refused = lease(clock, lambda: False)
    tend_every_second(refused, clock, 60)
    assert clock.now == START + 10
    assert refused.lost


def test_renewal_ends_ten_seconds_after_the_jobs_time_out(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, lock_log: LogLines
) -> None:
    renewed: list[float] = []

    def renew() -> bool:
        renewed.append(clock.now - START)
        return True

    job_times_out_in(45, monkeypatch)
    hung = lease(clock, renew)
    tend_every_second(hung, clock, 200)
    assert renewed == [10, 20, 30, 40, 50]
    assert clock.now == START + 50 + 27
    assert lock_log(logging.ERROR) == ["Job 42 lost the lock on owner/repo"]
