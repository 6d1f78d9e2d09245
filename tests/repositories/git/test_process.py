"""A git that changes a clone keeps the clone's flock for as long as it runs, and ends when the lock is lost."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_django import Settings

from docora.demo.bare import BareRepository
from repositories.errors import Holder, HostUnavailable
from repositories.git._process import Child, Command, child, error_of
from repositories.repo_lock import HeldLock, LockLostError, _flock, repo_lock
from tests.support.service import wait_until

KEY = "owner/repo"
ANOTHER = Holder(job_id="another", host="here", pid=1, since=0.0)


@pytest.fixture
def clone(tmp_path: Path, settings: Settings) -> Path:
    settings.REPOS_BASE_PATH = tmp_path
    return BareRepository(tmp_path / "clone").path


@contextmanager
def waiting_git(clone: Path, held: HeldLock) -> Iterator[Child]:
    """It runs until its standard input ends, or it is killed."""
    with child(Command(["cat-file", "--batch"], folder=clone, timeout=60, held=held)) as git:
        yield git


def is_free(key: str) -> bool:
    fd = _flock.take(_flock.path_of(key), ANOTHER)
    if fd is not None:
        os.close(fd)
    return fd is not None


def test_git_alone_keeps_the_flock(clone: Path) -> None:
    with repo_lock(KEY, job_id="42") as held, waiting_git(clone, held) as git:
        assert not is_free(KEY)
        git.process.kill()
        git.process.wait()
        assert is_free(KEY)


def test_git_is_killed_when_the_lock_is_lost(clone: Path) -> None:
    with pytest.raises(LockLostError), repo_lock(KEY, job_id="42") as held, waiting_git(clone, held) as git:
        held.lease.lose()
        assert git.process.wait(timeout=60) == -signal.SIGKILL


def test_what_git_has_started_ends_with_it(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nsleep 600 &\necho started\nwait\n")
    git.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with repo_lock(KEY, job_id="42") as held:
        with waiting_git(clone, held) as running:
            assert running.process.stdout
            assert running.process.stdout.readline() == b"started\n"
        wait_until(lambda: is_free(KEY), "the helper, which has inherited the flock, has ended")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Failed to connect to host port 443 after 0 ms: Couldn't connect to server", "no connection to host:443"),
        ("Failed to connect to host port 443: Connection refused", "connection refused by host:443"),
        ("Failed to connect to host port 443 after 9 ms: Connection timed out", "no answer from host:443"),
        ("Could not resolve host: host", "the name of host cannot be resolved"),
        ("The requested URL returned error: 503", "The requested URL returned error: 503"),
    ],
)
def test_what_git_says_of_a_host_is_told_in_words(said: str, words: str, tmp_path: Path) -> None:
    asking = Command(["ls-remote"], folder=tmp_path, timeout=20)
    error = error_of(asking, 128, f"fatal: unable to access 'https://host/acme/handbook/': {said}")
    assert (type(error), str(error)) == (HostUnavailable, words)
