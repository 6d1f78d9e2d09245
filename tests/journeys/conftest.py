"""The cast of the journeys."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from pytest_django import Settings

from tests.support.lock_cast import Cast
from tests.support.service import Service


@pytest.fixture
def service() -> Iterator[Service]:
    """A service that is not started yet: `service.start()`, or more of `service.environment` first."""
    service = Service()
    yield service
    service.close()


@pytest.fixture
def sqlite_service() -> Iterator[Service]:
    """The same for what has nothing to do with the database: once, on the embedded default, is enough."""
    service = Service()
    yield service
    service.close()


@pytest.fixture
def cast(valkey: redis.Redis, settings: Settings, tmp_path: Path) -> Iterator[Cast]:
    settings.REPOS_BASE_PATH = tmp_path
    settings.REPO_LOCK_WAIT = 20
    cast = Cast(folder=tmp_path, server=valkey)
    yield cast
    cast.end()
