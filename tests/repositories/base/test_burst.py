"""The connections that the threads of a web process share."""

import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest
from django.db import DatabaseError, connection

from repositories import hooks
from repositories.base import burst
from repositories.models import Watch
from tests.support.hook_cast import MadeHook

T = TypeVar("T")

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def made(watch: Watch) -> MadeHook:
    return MadeHook.of(watch)


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a web process."""
    monkeypatch.setattr(burst, "_free", None)
    burst.prepare(threads=2)
    assert burst._free
    yield
    while not burst._free.empty():
        burst._free.get().close()


def in_threads(count: int, act: Callable[[], T]) -> list[T]:
    found: list[T] = []
    threads = [threading.Thread(target=lambda: found.append(act())) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_no_thread_opens_a_connection_of_its_own_to_find_a_hook(made: MadeHook, prepared: None) -> None:
    public_id, secret = made.hook.public_id, made.secret

    def find() -> tuple[bool, bool]:
        found = hooks.find(public_id)
        return found is not None and found.secrets == [secret], connection.connection is not None

    assert in_threads(20, find) == [(True, False)] * 20


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no server that could end a connection")
def test_a_connection_that_the_server_has_ended_is_opened_again(made: MadeHook, prepared: None) -> None:
    public_id = made.hook.public_id
    end_others = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
    """
    with connection.cursor() as cursor:
        cursor.execute(end_others)
    assert all(hooks.find(public_id) for _ in range(burst._CONNECTIONS))


def test_a_database_that_does_not_answer_is_not_waited_for_long(
    made: MadeHook, prepared: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(burst, "_PATIENCE", 0.05)
    assert burst._free
    held = [burst._free.get() for _ in range(burst._CONNECTIONS)]
    with pytest.raises(DatabaseError):
        hooks.find(made.hook.public_id)
    for shared in held:
        burst._free.put(shared)
    assert hooks.find(made.hook.public_id)
