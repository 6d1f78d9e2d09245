"""The cast of the tests."""

import os
from collections.abc import Iterator
from pathlib import Path

import fakeredis
import pytest
import redis
from django.conf import settings

from docora import valkey as embedded
from repositories import repo_lock

_DATABASE_FIXTURES = {"db", "transactional_db", "service"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL, only the tests that touch the database: the others have run on SQLite."""
    if os.environ.get("TEST_DATABASE") != "postgresql":
        return
    kept = [item for item in items if _touches_the_database(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _touches_the_database(item: pytest.Item) -> bool:
    fixtures = set(getattr(item, "fixturenames", ()))
    return item.get_closest_marker("django_db") is not None or bool(fixtures & _DATABASE_FIXTURES)


@pytest.fixture(autouse=True)
def fake_redis(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeRedis:
    """Redis in the process, for queue and view logic; `valkey` puts the real server in its place."""
    server = fakeredis.FakeServer()

    def connect(**_: object) -> fakeredis.FakeRedis:
        return fakeredis.FakeRedis(server=server)

    monkeypatch.setattr("repositories.connections.connect", connect)
    repo_lock.start_anew()
    return connect()


@pytest.fixture(scope="session")
def valkey_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    socket = tmp_path_factory.mktemp("valkey") / "valkey.sock"
    process = embedded.start(socket, persistent=False)
    yield socket
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture
def valkey(valkey_socket: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A real server, empty at the start of each test."""
    url = f"unix://{valkey_socket}"
    monkeypatch.setattr(settings, "REDIS_URL", url)

    def connect(*, timeout: float = 5) -> redis.Redis:
        return redis.Redis.from_url(url, socket_timeout=timeout)

    monkeypatch.setattr("repositories.connections.connect", connect)
    with connect() as client:
        client.flushall()
        yield client
