"""The lock among processes that are killed, frozen and cut off.

Every test asserts that no two gits ran at once, that the others went on within a bound, and that neither
the server nor the disk keeps anything.
"""

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import redis

from docora.processes import valkey as embedded
from repositories.repo_lock import LockTimeoutError, release_leftovers, repo_lock, start_anew
from tests.support.lock_cast import KEY, LOST, OK, TIMED_OUT, Cast, results, send
from tests.support.service import wait_for_disk

pytestmark = pytest.mark.slow


class OwnServer:
    """A Valkey that a test may freeze, end and start again."""

    def __init__(self, folder: Path, *, persistent: bool) -> None:
        self.socket = folder / "valkey.sock"
        self._persistent = persistent
        self.start()

    def start(self) -> None:
        self.process: subprocess.Popen[bytes] = embedded.start(self.socket, persistent=self._persistent)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(timeout=10)


@pytest.fixture(params=[True, False], ids=["with its data", "without its data"])
def own_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OwnServer]:
    server = OwnServer(tmp_path_factory.mktemp("v"), persistent=request.param)

    def connect(*, timeout: float = 5) -> redis.Redis:
        return redis.Redis(unix_socket_path=str(server.socket), socket_timeout=timeout)

    monkeypatch.setattr("repositories.base.connections.connect", connect)
    start_anew()
    yield server
    server.stop()


def end_of(process: BaseProcess, patience: float = 20) -> int | None:
    process.join(patience)
    return process.exitcode


def test_the_lock_goes_from_hand_to_hand_without_overlap(cast: Cast) -> None:
    workers = [cast.worker(str(number), seconds=0.1) for number in range(6)]
    assert [end_of(worker) for worker in workers] == [OK] * 6
    cast.assert_no_overlap()
    fences = [fence for fence, _ in results(cast.folder)]
    assert fences == sorted(set(fences))
    cast.assert_nothing_is_left()


def test_a_killed_holder_blocks_no_longer_than_its_ttl_and_its_git_is_waited_for(cast: Cast) -> None:
    """As when horse and worker are killed together: nobody is left to release."""
    killed = cast.holder("killed", seconds=4, ttl=2)
    waiter = cast.waiter("waiter", seconds=0.2)
    send(killed, signal.SIGKILL)
    assert end_of(waiter) == OK
    assert cast.entries() == ["killed", "waiter"]
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


def test_a_holder_frozen_past_its_ttl_learns_of_it_and_writes_nothing(cast: Cast) -> None:
    frozen = cast.holder("frozen", seconds=4, ttl=2)
    waiter = cast.waiter("waiter", seconds=0.5)
    send(frozen, signal.SIGSTOP)
    cast.until(lambda: "waiter" in cast.entries())
    send(frozen, signal.SIGCONT)
    assert end_of(frozen) == LOST
    assert end_of(waiter) == OK
    assert [job for _, job in results(cast.folder)] == ["waiter"]
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


def test_a_killed_waiter_is_skipped_when_its_turn_comes(cast: Cast) -> None:
    holder = cast.holder("holder", seconds=2)
    first = cast.waiter("first")
    second = cast.waiter("second")
    send(first, signal.SIGKILL)
    end_of(first)
    assert end_of(holder) == OK
    assert cast.until(lambda: "second" in cast.entries()) < 5
    assert end_of(second) == OK
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


def test_a_frozen_waiter_loses_its_turn_and_gets_a_new_one_when_it_goes_on(cast: Cast) -> None:
    holder = cast.holder("holder", seconds=2)
    first = cast.waiter("first")
    second = cast.waiter("second", seconds=0.5)
    send(first, signal.SIGSTOP)
    assert end_of(holder) == OK
    assert cast.until(lambda: "second" in cast.entries()) < 5
    send(first, signal.SIGCONT)
    assert (end_of(second), end_of(first)) == (OK, OK)
    assert cast.entries() == ["holder", "second", "first"]
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


def test_sigterm_while_waiting_ends_the_process_and_holds_nobody_up(cast: Cast) -> None:
    holder = cast.holder("holder", seconds=1.5)
    first = cast.waiter("first")
    second = cast.waiter("second")
    send(first, signal.SIGTERM)
    assert end_of(first) == -signal.SIGTERM
    assert (end_of(holder), end_of(second)) == (OK, OK)
    assert cast.entries() == ["holder", "second"]
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


def test_a_waiter_gives_up_in_time(cast: Cast) -> None:
    holder = cast.holder("holder", seconds=1.5)
    assert end_of(cast.worker("waiter", wait=0.3)) == TIMED_OUT
    assert end_of(holder) == OK
    cast.assert_nothing_is_left()


def test_a_restarted_server(cast: Cast, own_server: OwnServer, request: pytest.FixtureRequest) -> None:
    """With its data the holder goes on undisturbed; without, it learns of it and its git is killed."""
    cast.server = redis.Redis(unix_socket_path=str(own_server.socket))
    holder = cast.holder("holder", seconds=3, ttl=1.5)
    waiter = cast.waiter("waiter", ttl=1.5)
    has_data = request.node.callspec.params["own_server"]
    if has_data:
        wait_for_disk(cast.server)
    own_server.stop()
    own_server.start()
    assert end_of(holder) == (OK if has_data else LOST)
    assert end_of(waiter) == OK
    assert cast.entries() == ["holder", "waiter"]
    assert [job for _, job in results(cast.folder)] == (["holder", "waiter"] if has_data else ["waiter"])
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


@pytest.mark.parametrize("own_server", [False], indirect=True, ids=[""])
@pytest.mark.parametrize(("ttl", "outcome"), [(15, OK), (2, LOST)], ids=["shorter than the TTL", "longer"])
def test_a_server_that_cannot_be_reached_for_a_while(
    cast: Cast, own_server: OwnServer, ttl: float, outcome: int
) -> None:
    cast.server = redis.Redis(unix_socket_path=str(own_server.socket))
    holder = cast.holder("holder", seconds=7, ttl=ttl)
    waiter = cast.waiter("waiter", ttl=ttl)
    own_server.process.send_signal(signal.SIGSTOP)
    time.sleep(6)  # the renewal of a TTL of 15 s is due in it
    own_server.process.send_signal(signal.SIGCONT)
    assert end_of(holder) == outcome
    assert end_of(waiter) == OK
    cast.assert_no_overlap()
    cast.assert_nothing_is_left()


class Alarm(Exception):
    """What a job's time-out raises, wherever the main thread happens to be."""


def _ring(number: int, frame: object) -> None:
    raise Alarm


def _lock_under_alarms(seed: int) -> None:
    signal.signal(signal.SIGALRM, _ring)
    dice = random.Random(seed)  # noqa: S311  the seed makes a failure repeatable
    for _ in range(300):
        with contextlib.suppress(Alarm):
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.00002, 0.002))
            with repo_lock(KEY, job_id="alarmed") as held:
                time.sleep(dice.uniform(0, 0.0005))
                held.check()
            signal.setitimer(signal.ITIMER_REAL, 0)
        release_leftovers("alarmed")
        with repo_lock(KEY, job_id="afterwards", wait=0):
            pass


def test_a_time_out_at_any_point_leaves_no_lock_behind(cast: Cast) -> None:
    assert end_of(cast.start(_lock_under_alarms, 1), patience=60) == OK
    cast.assert_nothing_is_left()


def _wait_under_alarms(seed: int) -> None:
    signal.signal(signal.SIGALRM, _ring)
    dice = random.Random(seed)  # noqa: S311  the seed makes a failure repeatable
    for _ in range(100):
        # An alarm that rings inside of logging is swallowed there; then the wait ends by itself.
        with contextlib.suppress(Alarm, LockTimeoutError):
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(0.0005, 0.01))
            with repo_lock(KEY, job_id="alarmed", wait=0.1):
                raise AssertionError("it was held")
        release_leftovers("alarmed")


def test_a_time_out_while_waiting_leaves_the_line(cast: Cast) -> None:
    with repo_lock(KEY, job_id="holder"):
        assert end_of(cast.start(_wait_under_alarms, 2), patience=60) == OK
        assert not cast.server.exists(f"docora:repo-lock:{{{KEY}}}:queue")
    cast.assert_nothing_is_left()
