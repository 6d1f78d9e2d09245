"""What must hold for Docora to do its work: one list for /ready, `manage.py check`, the overview and the start."""

from collections.abc import Callable
from functools import cache

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from docora.backup import postgresql
from repositories import canary
from repositories.base import connections, pulse

NO_DATABASE = "the database does not answer"
NO_REDIS = "Redis does not answer"


class Unmet(Exception):
    """Its text is shown to anybody who asks /ready."""


def outcomes() -> dict[str, str]:
    """By the name of each check: `ok`, or what is wrong."""
    return {name: outcome(name) for name in CHECKS}


def outcome(name: str) -> str:
    """Of one check."""
    try:
        CHECKS[name]()
    except Unmet as reason:
        return str(reason)
    except DatabaseError:
        return NO_DATABASE
    except redis.RedisError:
        return NO_REDIS
    return "ok"


def check_keys() -> None:
    try:
        canary.check_keys()
    except canary.WrongKeys as reason:
        raise Unmet(str(reason)) from None


def check_restored() -> None:
    if postgresql.UNFINISHED in connection.introspection.table_names():
        raise Unmet("a restore was interrupted: restore once more, into a new database")


def _database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@cache  # what is applied stays applied; an error is not kept
def _migrations() -> None:
    check_restored()
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise Unmet("migrations are missing: run manage.py migrate")


@cache
def _impatient_connection() -> redis.Redis:
    return connections.connect_impatiently(timeout=2)


def _redis() -> None:
    _impatient_connection().ping()


def _jobs() -> None:
    _redis()
    waited = pulse.seconds_waited()
    if waited > settings.READY_JOB_AGE:
        raise Unmet(f"a job has been waiting for {waited:.0f} s")
    if untended := pulse.untended_queues():
        raise Unmet(f"jobs wait in {', '.join(untended)}, and no worker takes that queue")


def _scheduler() -> None:
    _redis()
    since = pulse.seconds_since_tick()
    if since is None:
        raise Unmet("the scheduler has not ticked yet")
    if since > 2 * settings.SCAN_INTERVAL + 30:
        raise Unmet(f"the scheduler ticked {since:.0f} s ago")


CHECKS: dict[str, Callable[[], None]] = {
    "database": _database,
    "migrations": _migrations,
    "keys": check_keys,
    "redis": _redis,
    "jobs": _jobs,
    "scheduler": _scheduler,
}
HINTS = {
    "database": "See DATABASE_URL, and whether the database server runs.",
    "migrations": "Run `manage.py migrate`, or restart with `manage.py up`, which does it.",
    "keys": "Put the missing key behind the new one in ENCRYPTION_KEYS, then run `manage.py rotate_encryption`.",
    "redis": "See REDIS_URL, and whether Redis or the embedded Valkey runs.",
    "jobs": "Start a worker: `manage.py up`, or `manage.py rqworker` with the queue's name.",
    "scheduler": "Start it: `manage.py up`, or `manage.py scheduler`.",
}
