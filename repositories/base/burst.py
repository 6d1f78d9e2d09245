"""Connections of a web process that are open before a burst of hooks arrives, and shared by all of its threads.

Django gives every thread a database connection of its own, and opens it at the thread's first question. Many hooks at
once wake threads that have slept; opening a connection in each of them took longer than all the answers.
"""

import contextlib
import queue as queues
from collections.abc import Sequence
from typing import Any

import redis
from django.db import DEFAULT_DB_ALIAS, DatabaseError, OperationalError, connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from repositories.base import queue

# Each question takes a fraction of a millisecond; but on a busy machine PostgreSQL waits for a processor before it
# answers.
_CONNECTIONS = 4
# Seconds to wait until another thread has its answer.
_PATIENCE = 1.0

_free: "queues.LifoQueue[BaseDatabaseWrapper] | None" = None


def prepare(*, threads: int) -> None:
    """Called once in a web process. What cannot be opened now is opened when it is needed."""
    global _free
    _free = queues.LifoQueue()
    for _ in range(_CONNECTIONS):
        shared = connections.create_connection(DEFAULT_DB_ALIAS)
        shared.inc_thread_sharing()
        with contextlib.suppress(DatabaseError):
            shared.ensure_connection()
        _free.put(shared)
    with contextlib.suppress(redis.RedisError):
        pool = queue.impatient_connection().connection_pool
        for opened in [pool.get_connection() for _ in range(threads)]:
            pool.release(opened)


def ask(question: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """The rows of a SELECT. Outside of a web process it goes through the thread's own connection."""
    if _free is None:
        return _ask(connection, question, parameters)
    try:
        shared = _free.get(timeout=_PATIENCE)
    except queues.Empty:
        raise OperationalError("The database does not answer.") from None
    try:
        return _ask(shared, question, parameters)
    except DatabaseError:  # the server may have been started again since the last question
        shared.close()
        return _ask(shared, question, parameters)
    finally:
        _free.put(shared)


def _ask(through: BaseDatabaseWrapper, question: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with through.cursor() as cursor:
        cursor.execute(question, parameters)
        return list(cursor.fetchall())
