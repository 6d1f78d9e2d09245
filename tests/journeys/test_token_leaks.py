"""A token is in the environment of one git child and, encrypted, in the database: nowhere else."""

import os
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from docora.demo.githost import GitFault
from tests.support.git_cast import Scene, scene
from tests.support.service import wait_until

pytestmark = pytest.mark.slow

TOKEN = "ghp_thisTokenMustNeverBeSeenAnywhere01"


class ProcessList(threading.Thread):
    """Samples the argument lists of all processes until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="process list")
        self.seen: set[str] = set()
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    self.seen.add(" ".join(process.cmdline()))


def files_with(token: bytes, folder: Path) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and token in path.read_bytes():
                found.append(str(path))
    return found


def redis_values(play: Scene) -> bytes:
    client = play.service.redis()
    return b"".join(key + (client.dump(key) or b"") for key in client.scan_iter())


def test_the_token_is_found_nowhere(tmp_path: Path) -> None:
    with scene(tmp_path, apps=2) as play:
        private = play.host.create("acme/secret", private_to={TOKEN, "other-token"})
        private.commit({"noise.bin": os.urandom(60_000)})
        watching = ProcessList()
        watching.start()
        with play.host.faults.put(GitFault(bytes_per_second=40_000)):
            play.apps[0].watch(private.url, token=TOKEN)
            play.apps[1].watch(private.url, token="other-token")
            wait_until(lambda: bool(play.receivers[0].files), "the first snapshot arrives")
        play.host.expire_token(TOKEN)
        private.commit({"noise.bin": os.urandom(1000)})
        last = private.files()
        wait_until(lambda: last in play.receivers[1].files.values(), "the other app gets the change")
        play.host.faults.put(GitFault(status=503))
        wait_until(lambda: any(r.event == "sync_failed" for r in play.receivers[1].requests), "the failure is told")
        watching.over.set()
        watching.join()
        in_redis = redis_values(play)
        logs = play.service.output
        payloads = b"".join(r.body + str(r.headers).encode() for it in play.receivers for r in it.requests)
        found = files_with(TOKEN.encode(), play.service.data)
    assert any("ls-remote" in line for line in watching.seen)
    assert any("fetch" in line and "acme/secret" in line for line in watching.seen)
    assert [line for line in watching.seen if TOKEN in line] == []
    assert found == []
    assert TOKEN not in logs
    assert TOKEN.encode() not in in_redis
    assert TOKEN.encode() not in payloads
