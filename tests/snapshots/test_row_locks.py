"""Rows that are locked before something is written by what they say: nobody else changes them in between."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from docora.demo.githost import HostedRepository
from repositories import access, hooks, timing, watches
from repositories.models import App, Repository, Watch
from snapshots import history
from snapshots.delivery import _recording, redelivery, tell
from snapshots.look import take_snapshot
from snapshots.models import Snapshot
from tests.support.beside import beside

pytestmark = pytest.mark.django_db(transaction=True)

Act = Callable[[Watch], object]


def is_locked(rows: QuerySet[Any]) -> bool:
    """Whether another connection would have to wait for these rows."""
    refused: list[OperationalError] = []

    def lock() -> None:
        if connection.vendor == "sqlite":
            connection.cursor().execute("PRAGMA busy_timeout = 0")
        try:
            with transaction.atomic():
                assert list(rows.select_for_update(nowait=True))
        except OperationalError as error:
            refused.append(error)

    beside(lock)
    return bool(refused)


@contextmanager
def looked_at_before(statement: str, rows: QuerySet[Any]) -> Iterator[list[bool]]:
    """For each such statement of this thread, whether these rows were locked before it."""
    found: list[bool] = []

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if re.match(statement, sql):
            found.append(is_locked(rows.all()))
        return run(sql, params, many, context)

    with connection.execute_wrapper(execute):
        yield found


def look(watch: Watch) -> None:
    take_snapshot(watch.repository_id, job_id="look")


def look_and_deliver(watch: Watch) -> None:
    look(watch)
    tell.deliver(watch.pk, job_id="deliver")


def unwatch(watch: Watch) -> None:
    watches.unwatch(watch.app, watch.repository.public_id)


def watch_again(watch: Watch) -> None:
    watches.watch(watch.app, watch.repository.url)


def end_hook(watch: Watch) -> None:
    hooks.close(hooks.open_for(watch)[0])


def change_hook(watch: Watch) -> None:
    hooks.change_secret(hooks.open_for(watch)[0])


def watch_again_with_hook(watch: Watch) -> None:
    hooks.open_for(watch)
    watch_again(watch)


def forget_history(watch: Watch) -> None:
    look_and_deliver(watch)
    Snapshot.objects.update(taken_at=timezone.now() - timedelta(days=365))
    history.prune(Repository.objects.get())


@pytest.mark.parametrize(
    ("act", "statement", "rows"),
    [
        pytest.param(look, 'UPDATE "snapshots_fileversion"', Repository, id="a snapshot"),
        pytest.param(look_and_deliver, 'INSERT INTO "snapshots_delivered"', Watch, id="answers"),
        pytest.param(look_and_deliver, 'UPDATE "repositories_watch" SET "files"', Watch, id="what the app has"),
        pytest.param(look_and_deliver, 'UPDATE "repositories_watch" SET .*"synced_commit"', Watch, id="completion"),
        pytest.param(unwatch, 'DELETE FROM "snapshots_delivered"', Watch, id="unwatch, the watch"),
        pytest.param(unwatch, 'DELETE FROM "snapshots_delivered"', Repository, id="unwatch, the repository"),
        pytest.param(watch_again, 'INSERT INTO "repositories_watch"', Repository, id="watch, the repository"),
        pytest.param(
            watch_again, 'UPDATE "repositories_repository" SET "is_private"', Repository, id="watch, before its facts"
        ),
        pytest.param(watch_again, 'INSERT INTO "repositories_watch"', App, id="watch, the app"),
        pytest.param(watch_again_with_hook, 'SELECT .*FROM "repositories_hook"', Watch, id="watch, before its hook"),
        pytest.param(end_hook, 'DELETE FROM "repositories_hook"', Watch, id="the end of a hook"),
        pytest.param(change_hook, 'UPDATE "repositories_hook"', Watch, id="the secret of a hook"),
        pytest.param(redelivery.resync, 'UPDATE "snapshots_delivered"', Watch, id="resync"),
        pytest.param(forget_history, 'DELETE FROM "snapshots_file"', Repository, id="history"),
    ],
)
def test_a_row_is_locked_before(
    watch: Watch, remote: HostedRepository, act: Act, statement: str, rows: type[Any]
) -> None:
    remote.commit({"README.md": "changed", "logo.png": None})
    with looked_at_before(statement, rows.objects.all()) as found:
        act(watch)
    assert found
    assert all(found)


@contextmanager
def locked_elsewhere(rows: QuerySet[Any]) -> Iterator[None]:
    """By another process, while this one waits for nobody."""
    is_locked, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            assert list(rows.select_for_update())
            is_locked.set()
            is_over.wait(60)

    holder = threading.Thread(target=beside, args=(hold,))
    holder.start()
    assert is_locked.wait(60)
    connection.cursor().execute("SET lock_timeout = '100ms'")
    try:
        yield
    finally:
        connection.cursor().execute("SET lock_timeout = 0")
        is_over.set()
        holder.join()


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite locks no rows")
def test_what_writes_many_rows_leaves_out_those_that_are_locked(watch: Watch) -> None:
    long_ago = timezone.now() - timedelta(days=1)
    Repository.objects.update(next_check_at=long_ago)
    Watch.objects.update(access_proven_at=long_ago)
    repository, proven = Repository.objects.get(), Watch.objects.get()
    with locked_elsewhere(Repository.objects.all()):
        assert timing.claim_due_looks(timezone.now(), 10) == []
        timing.plan_claimed_looks({repository: timezone.now()})
    assert Repository.objects.get().next_check_at == long_ago
    with locked_elsewhere(Watch.objects.all()):
        access.note_proofs([proven], at=timezone.now())
    assert Watch.objects.get().access_proven_at == long_ago


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite's commits wait for no disk")
def test_only_the_commit_of_answers_does_not_wait_for_the_disk(watch: Watch) -> None:
    def ask(question: str) -> str:
        with connection.cursor() as cursor:
            cursor.execute(question)
            return str(cursor.fetchone()[0])

    connection.cursor().execute("SET synchronous_commit TO on")  # the tests' server waits for no disk
    with transaction.atomic():
        assert _recording.read_watch(watch.pk)
        assert ask("SHOW synchronous_commit") == "off"
    assert ask("SHOW synchronous_commit") == "on"
    assert _recording.read_watch(watch.pk)
    assert ask("SHOW synchronous_commit") == "on"
    connection.cursor().execute("RESET synchronous_commit")
