"""A lock is renewed while its holder lives; a holder that lost it learns of it, and its child is killed."""

import signal
import subprocess

import pytest
import redis

from repositories import repo_lock as door
from repositories.repo_lock import (
    HeldLock,
    LockLostError,
    repo_lock,
)
from repositories.repo_lock._server import LockServer, Names
from tests.support.lock_cast import KEY, LOCK, is_held, take_without_renewing
from tests.support.service import wait_until

pytestmark = pytest.mark.usefixtures("server")


@pytest.fixture
def renewals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the locks that were renewed, in order."""
    renewed: list[str] = []
    renew = LockServer.renew

    def note(server: LockServer, names: Names, token: str, *, ttl: float) -> bool:
        renewed.append(names.key)
        return renew(server, names, token, ttl=ttl)

    monkeypatch.setattr(LockServer, "renew", note)
    return renewed


def renew_now(held: HeldLock) -> None:
    """Let the watchdog do now what it would do after a third of the TTL."""
    held.lease.renew_at = 0.0
    door._here.watchdog._wake.put(None)


@pytest.mark.slow
def test_a_lock_is_renewed_again_and_again(server: redis.Redis, renewals: list[str]) -> None:
    with repo_lock(KEY, job_id="42", ttl=3) as held:
        wait_until(lambda: len(renewals) == 2)
        held.check()
        assert server.pttl(LOCK) > 0


def test_a_renewed_lock_lives_for_the_whole_ttl_again(server: redis.Redis) -> None:
    with repo_lock(KEY, job_id="42", ttl=60) as held:
        server.pexpire(LOCK, 20_000)
        renew_now(held)
        wait_until(lambda: server.pttl(LOCK) > 50_000)


@pytest.mark.slow
def test_a_short_lease_taken_beside_a_long_one_is_renewed_too(renewals: list[str]) -> None:
    with repo_lock("long/lease", job_id="42"), repo_lock(KEY, job_id="42", ttl=3):
        wait_until(lambda: renewals)
        assert renewals == [KEY]


@pytest.mark.parametrize("wiped", [True, False], ids=["wiped", "taken by another"])
def test_losing_the_lock_kills_the_guarded_child(server: redis.Redis, wiped: bool) -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42", ttl=60) as held:
        with held.inherit() as fd:
            child = subprocess.Popen(["sleep", "60"], start_new_session=True, pass_fds=(fd,))
        with held.guarding(child.pid):
            server.delete(LOCK)
            if not wiped:
                take_without_renewing("37")
            renew_now(held)
            child.wait(timeout=30)
    # Out here: an error in there would be taken for the LockLostError that follows it.
    assert child.poll() == -signal.SIGKILL
    assert is_held() is not wiped


def test_a_child_started_after_the_loss_is_killed_at_once() -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42", ttl=0.3) as held:
        door._here.watchdog.forget(held.lease)
        wait_until(lambda: held.lost)
        child = subprocess.Popen(["sleep", "60"], start_new_session=True)
        with held.guarding(child.pid):
            pass
    assert child.wait(timeout=30) == -signal.SIGKILL


def test_a_lost_lock_is_not_inherited(server: redis.Redis) -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42", ttl=0.3) as held:
        door._here.watchdog.forget(held.lease)
        wait_until(lambda: held.lost)
        with held.inherit():
            pytest.fail("a child could have been started")


def test_starting_anew_ends_the_thread_that_renewed() -> None:
    with repo_lock(KEY, job_id="42"):
        thread = door._here.watchdog._thread
    door.start_anew()
    assert thread
    thread.join(timeout=30)
    assert not thread.is_alive()
