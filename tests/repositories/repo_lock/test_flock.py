"""The fence that the kernel keeps: inherited by the child, never two of it, nothing left of it."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from pytest_django import Settings

from repositories.errors import Holder
from repositories.repo_lock import HeldLock, LockLostError, LockTimeoutError, lock_status, release_after_kill, repo_lock
from repositories.repo_lock import _flock as flock

KEY = "owner/repo"
ME = Holder(job_id="37", host="here", pid=1, since=0.0)


@pytest.fixture(autouse=True)
def repos(settings: Settings, tmp_path: Path) -> Path:
    settings.REPOS_BASE_PATH = tmp_path
    settings.REPO_LOCK_WAIT = 4
    return tmp_path


@pytest.fixture
def like_a_killed_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the `with` does not wait for the child, as if the holder had been killed."""
    monkeypatch.setattr(flock, "KILLED_GIT_ENDS_WITHIN", 0.0)


def start_child(held: HeldLock, *command: str) -> "subprocess.Popen[bytes]":
    with held.inherit() as fd:
        return subprocess.Popen(command, start_new_session=True, pass_fds=(fd,))


def is_free(path: Path) -> bool:
    fd = flock.take(path, ME)
    if fd is not None:
        os.close(fd)
    return fd is not None


def test_a_lock_alone_makes_no_file(repos: Path) -> None:
    with repo_lock("delivery:1:2", job_id="42", wait=0):
        pass
    assert list(repos.iterdir()) == []


def test_only_the_child_keeps_the_flock_and_the_release_removes_the_file(repos: Path) -> None:
    with repo_lock(KEY, job_id="42") as held:
        child = start_child(held, "sleep", "60")
        assert not is_free(flock.path_of(KEY))
        child.kill()
        child.wait()
        assert is_free(flock.path_of(KEY))
    assert list((repos / ".locks").iterdir()) == []


def test_the_release_waits_for_a_killed_childs_last_moment(repos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A git's helpers inherit the flock too, and end a moment after the git that was waited for."""
    monkeypatch.setattr(flock, "KILLED_GIT_ENDS_WITHIN", 60.0)
    with repo_lock(KEY, job_id="42") as held:
        helper = start_child(held, "sleep", "0.2")
    assert list((repos / ".locks").iterdir()) == []
    assert helper.wait() == 0


def test_a_killed_process_leaves_no_lock_file(repos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flock, "KILLED_GIT_ENDS_WITHIN", 60.0)
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="killed") as held:
        orphan = start_child(held, "sh", "-c", "sleep 600 & wait")
        release_after_kill("killed", os.getpid())
        assert list((repos / ".locks").iterdir()) == []
        assert lock_status() == []
    assert orphan.wait() == -signal.SIGKILL


@pytest.mark.usefixtures("like_a_killed_holder")
def test_the_next_holder_waits_for_the_orphan_of_the_one_before(
    repos: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REPO_LOCK_WAIT = 100
    with repo_lock(KEY, job_id="killed") as held, held.inherit() as fd:
        orphan = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True, pass_fds=(fd,))
    assert orphan.stdin
    assert [path.name for path in (repos / ".locks").iterdir()] == ["owner%2Frepo"]
    sleep, input_of_the_orphan = time.sleep, orphan.stdin

    def let_it_end(seconds: float) -> None:
        input_of_the_orphan.close()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", let_it_end)
    with repo_lock(KEY, job_id="next") as held, held.inherit():
        assert input_of_the_orphan.closed, "it was not waited for"
        # Free by now, but the kernel may still be busy with its end.
        assert orphan.wait(timeout=30) == 0
    assert list((repos / ".locks").iterdir()) == []


@pytest.mark.usefixtures("like_a_killed_holder")
def test_an_orphan_that_does_not_end_is_ended(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """After half of the time for which the next holder waits; here that time then stands still."""
    settings.REPO_LOCK_WAIT = 100
    moments = chain([0.0], repeat(51.0))
    monkeypatch.setattr("repositories.repo_lock._held.clock", lambda: next(moments))
    with repo_lock(KEY, job_id="killed") as held:
        orphan = start_child(held, "sh", "-c", "sleep 60 & wait")
    with repo_lock(KEY, job_id="next") as held, held.inherit():
        assert orphan.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.usefixtures("like_a_killed_holder")
def test_a_worker_that_stands_in_the_way_is_named_and_not_killed(settings: Settings) -> None:
    settings.REPO_LOCK_WAIT = 0.4
    in_the_way = flock.take(flock.path_of(KEY), ME)
    assert in_the_way is not None
    with repo_lock(KEY, job_id="42") as held:
        with pytest.raises(LockTimeoutError) as caught, held.inherit():
            pass
        assert caught.value.holder == ME
    os.close(in_the_way)


@pytest.mark.skipif(sys.platform != "linux", reason="other processes are seen in Linux's /proc")
def test_a_process_that_ends_while_all_are_looked_at_hides_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any process of the host may end just before its files are listed."""
    ending = subprocess.Popen(["sleep", "600"])
    scandir = os.scandir

    def end_and_scan(path: Any) -> Any:
        if str(path) == f"/proc/{ending.pid}/fd":
            ending.kill()
            ending.wait()
        return scandir(path)

    with repo_lock(KEY, job_id="42") as held:
        orphan = start_child(held, "sleep", "600")
        monkeypatch.setattr(os, "scandir", end_and_scan)
        flock.end_orphans(flock.path_of(KEY))
        assert orphan.wait() == -signal.SIGKILL
    assert ending.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("like_a_killed_holder")
def test_a_lock_that_is_lost_while_an_orphan_is_waited_for_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    in_the_way = flock.take(flock.path_of(KEY), ME)
    assert in_the_way is not None
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42") as held:
        monkeypatch.setattr(time, "sleep", lambda _: held.lease.lose())
        with held.inherit():
            pytest.fail("a child could have been started")
    os.close(in_the_way)


def test_a_lock_that_is_lost_when_the_orphan_ends_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    take = flock.take

    def take_too_late(path: Path, me: Holder) -> int | None:
        held.lease.lose()
        return take(path, me)

    monkeypatch.setattr(flock, "take", take_too_late)
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42") as held, held.inherit():
        pytest.fail("a child could have been started")


def test_an_flock_of_a_file_that_was_removed_meanwhile_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the opening of the file and the flock, its holder removes it, and a third process makes another."""
    path = flock.path_of(KEY)
    real = fcntl.flock

    def remove_and_flock(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        path.unlink()
        path.touch()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_flock)
    assert flock.take(path, ME) is None
    assert is_free(path)


@pytest.mark.usefixtures("like_a_killed_holder")
def test_a_file_left_to_an_orphan_is_removed_by_a_later_holder_of_another_lock(repos: Path) -> None:
    with repo_lock(KEY, job_id="killed") as held:
        orphan = start_child(held, "sleep", "60")
    left_behind = flock.path_of(KEY)
    os.utime(left_behind, (time.time() - 7200,) * 2)
    with repo_lock("another/repo", job_id="42") as held, held.inherit():
        pass
    assert left_behind.exists(), "its flock is still held"
    orphan.kill()
    orphan.wait()
    with repo_lock("another/repo", job_id="42") as held, held.inherit():
        pass
    assert not left_behind.exists()


def test_a_full_disk_costs_the_note_and_not_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with repo_lock(KEY, job_id="42") as held, held.inherit():
        assert not is_free(flock.path_of(KEY))
        assert flock.taken_by(flock.path_of(KEY)) is None


@pytest.mark.slow
def test_processes_that_take_and_remove_the_file_never_hold_two_of_it(repos: Path) -> None:
    """Each notes when it comes and goes; the notes of two must never be entangled."""
    journal = repos / "journal"
    children = [_fork(_take_and_remove_many_times, journal) for _ in range(4)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
    notes = journal.read_text().split()
    assert len(notes) == 4 * 2 * 100
    assert notes[::2] == notes[1::2]
    assert list((repos / ".locks").iterdir()) == []


def _take_and_remove_many_times(journal: Path) -> None:
    path = flock.path_of(KEY)
    with journal.open("a", buffering=1) as notes:
        for _ in range(100):
            while (fd := flock.take(path, ME)) is None:
                time.sleep(0)
            notes.write(f"{os.getpid()}\n")
            notes.write(f"{os.getpid()}\n")
            os.close(fd)
            flock.remove_if_free(path)


def _fork(function: Callable[[Path], None], journal: Path) -> int:
    child = os.fork()
    if child == 0:
        try:
            function(journal)
            os._exit(0)
        except BaseException:
            os._exit(1)
    return child
