"""Workers and gits are killed at random moments of clone and fetch: the repository always syncs again by itself."""

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from docora.demo.githost import GitFault
from tests.support.git_cast import Scene, scene
from tests.support.service import wait_until

pytestmark = pytest.mark.slow

KILLS = 50


def victims(play: Scene) -> list[tuple[str, int]]:
    """Name and process id of snapshot workers, their work horses, and git with its helpers."""
    assert play.service.process
    found = []
    for process in psutil.Process(play.service.process.pid).children(recursive=True):
        with suppress(psutil.Error):  # it has ended meanwhile
            name = process.name()
            if name.startswith(("git", "snapshots-")):
                found.append((name, process.pid))
    return found


def kill_one(play: Scene, chance: random.Random) -> str | None:
    """Git rather than a worker: those are there only while something is fetched."""
    candidates = victims(play)
    gits = [(name, pid) for name, pid in candidates if "git" in name]
    if not gits:
        return None
    name, pid = chance.choice(gits if chance.random() < 0.6 else candidates)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return name


@pytest.mark.timeout(240)
def test_after_fifty_kills_everything_arrives(tmp_path: Path) -> None:
    chance = random.Random(4)  # noqa: S311  the same moments in every run, as far as the machine allows
    settings = {"CIRCUIT_BREAKER_COOLDOWN": "1", "DOCORA_GIT_STALL_TIMEOUT": "5"}
    with scene(tmp_path, apps=1, SCAN_CONCURRENCY="3", **settings) as play:
        repositories = [play.host.create(f"acme/busy{number}") for number in range(3)]
        for repository in repositories:
            repository.commit({"noise.bin": os.urandom(60_000), "file.txt": b"0"})
            play.apps[0].watch(repository.url)
        kills: list[str] = []
        with play.host.faults.put(GitFault(bytes_per_second=150_000)):
            deadline = time.monotonic() + 120
            while len(kills) < KILLS and time.monotonic() < deadline:
                repository = chance.choice(repositories)
                repository.commit({"noise.bin": os.urandom(60_000), "file.txt": str(len(kills)).encode()})
                time.sleep(chance.uniform(0.02, 0.3))
                if name := kill_one(play, chance):
                    kills.append(name)
        assert len(kills) == KILLS
        files = play.receivers[0].files
        for repository in repositories:
            last = repository.files()
            wait_until(lambda last=last: last in files.values(), "the last commit arrives", 90)  # type: ignore[misc]
        assert play.receivers[0].problems == []
        assert not list((play.service.data / "repos" / ".drafts").iterdir())


def test_a_failed_look_is_tried_again_by_itself_and_at_once_when_somebody_asks(tmp_path: Path) -> None:
    """The scheduler's tick is out of the way: it is the worker that comes back after the pause."""
    never = {"SCAN_INTERVAL": "3600", "RESCAN_INTERVAL": "3600", "DOCORA_MIN_RESCAN_INTERVAL": "3600"}
    with scene(tmp_path, apps=1, RETRY_BASE_DELAY="3", CIRCUIT_BREAKER_THRESHOLD="20", **never) as play:
        repository = play.host.create("acme/handbook")
        repository.commit({"a.md": "a"})
        files, faults = play.receivers[0].files, play.host.faults
        first = repository.files()
        with faults.put(GitFault(kinds={"fetch"}, status=503, times=1)):
            play.apps[0].watch(repository.url)
            wait_until(lambda: first in files.values(), "the look is tried again")
        repository.commit({"b.md": "b"})
        second = repository.files()
        with faults.put(GitFault(status=503)):
            play.service.manage("snapshot", repository.url)
            wait_until(lambda: _failures(play) >= 3, "the pause has grown to 12 s")
        play.service.manage("snapshot", repository.url)
        wait_until(lambda: second in files.values(), "the request ends the pause", 11)


def _failures(play: Scene) -> int:
    [state] = play.apps[0].get("/api/repositories")["repositories"]
    return int(state["circuit"]["consecutive_failures"])
