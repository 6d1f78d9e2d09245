"""The hooks of the API's tests, and the repository that they are about."""

from collections.abc import Callable

import pytest

from repositories import hints
from repositories.models import App, Watch
from tests.support.api import Api
from tests.support.databases import first_on_every_database
from tests.support.git_hooks import SENDERS, Sender
from tests.support.hook_cast import MadeHook


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "INTERVAL", 0.0)


@pytest.fixture(params=first_on_every_database(SENDERS))
def send(request: pytest.FixtureRequest) -> Sender:
    """A push as each git host sends it."""
    return SENDERS[request.param]


@pytest.fixture
def repository_id(alice_api: Api, give_handbook: Callable[[App], Watch]) -> str:
    """The handbook's, which Alice has."""
    return give_handbook(App.objects.get(name="Alice's search")).repository.public_id


@pytest.fixture
def made(watch: Watch) -> MadeHook:
    """Alice has the handbook, and a hook for it."""
    return MadeHook.of(watch)
