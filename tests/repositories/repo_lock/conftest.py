"""The servers on which the lock is tested: fakeredis, a real Valkey, and any server that is named.

DOCORA_TEST_REDIS_URL names the third; `docora:metrics` and keys that begin with `docora:repo-lock:` are removed there.
"""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis
from pytest_django import Settings

from repositories import repo_lock as door
from repositories.repo_lock import shutdown_repo_lock
from tests.support.lock_cast import LogLines

NAMED_SERVER = os.environ.get("DOCORA_TEST_REDIS_URL", "")
SERVERS = ["fake_redis", "valkey", *(["named_server"] if NAMED_SERVER else [])]


@pytest.fixture
def named_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    def connect(*, timeout: float = 5) -> redis.Redis:
        return redis.Redis.from_url(NAMED_SERVER, socket_timeout=timeout)

    monkeypatch.setattr("repositories.base.connections.connect", connect)
    with connect() as client:
        yield client
        for key in (*client.scan_iter("docora:repo-lock:*"), b"docora:metrics"):
            client.delete(key)


@pytest.fixture(params=SERVERS)
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
