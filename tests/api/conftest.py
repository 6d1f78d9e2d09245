"""The hooks of the API's tests."""

import pytest

from repositories import hints
from repositories.models import Watch
from tests.support.git_hooks import SENDERS, Sender
from tests.support.hook_cast import MadeHook


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "INTERVAL", 0.0)


@pytest.fixture(params=list(SENDERS))
def send(request: pytest.FixtureRequest) -> Sender:
    """A push as each git host sends it."""
    return SENDERS[request.param]


@pytest.fixture
def made(watch: Watch) -> MadeHook:
    """Alice has the handbook, and a hook for it."""
    return MadeHook.of(watch)
