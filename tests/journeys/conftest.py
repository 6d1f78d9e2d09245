"""The cast of the journeys."""

from collections.abc import Iterator

import pytest

from tests.service import Service


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
