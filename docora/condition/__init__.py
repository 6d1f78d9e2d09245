"""What must hold for Docora to do its work: one list for /ready, `manage.py check`, the overview and the start."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from repositories import canary
from repositories.base import connections, disks, pulse, queue
from repositories.base.words import plural
from repositories.errors import EndpointDisabled, hint_for
from repositories.models import App, Repository

NO_DATABASE = "the database does not answer"
NO_REDIS = "Redis does not answer"
# A table of PostgreSQL that is there from the beginning of a restore to its end: Docora does not start beside it.
RESTORE_UNFINISHED = "docora_restore_unfinished"


class Unmet(Exception):
    """Its text is shown to anybody who asks /ready."""


def outcomes() -> dict[str, str]:
    """The outcome of each check, by its name: `ok`, or what is wrong."""
    return {name: outcome(name) for name in CHECKS}


def outcome(name: str) -> str:
    """`ok`, or what is wrong."""
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
    if RESTORE_UNFINISHED in connection.introspection.table_names():
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """Something that needs a person: the operator is told, and told again when it is over."""

    kind: str
    name: str
    subject: str
    reason: str
    hint: str
    begins: bool = True
    """False: this begins no alert, but an alert that has begun is not over while this lasts."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.name}"


def _open_circuits() -> Iterator[Concern]:
    for repository in Repository.objects.exclude(circuit_open_until=None):
        yield Concern(
            kind="circuit-open",
            name=repository.public_id,
            subject=str(repository),
            reason=repository.last_error,
            hint=hint_for(repository.last_error_code),
        )


def _disabled_apps() -> Iterator[Concern]:
    for app in App.objects.exclude(disabled_at=None):
        yield Concern(
            kind="app-disabled",
            name=app.public_id,
            subject=app.name,
            reason=app.disabled_reason,
            hint=EndpointDisabled.hint,
        )


def _queues_without_worker() -> Iterator[Concern]:
    for name in pulse.queues_without_worker():
        reason = f"Waiting: {plural(queue.length(name), 'job')}."
        yield Concern(kind="queue-untended", name=name, subject=name, reason=reason, hint=HINTS["jobs"])


def _low_disks() -> Iterator[Concern]:
    for host, disk in disks.known(queue.connection()).items():
        percent = 100 * disk.free / max(1, disk.size)
        if percent < settings.DISK_LOW_PERCENT + _DISK_MARGIN:
            yield Concern(
                kind="disk-low",
                name=host,
                subject=host,
                reason=f"{percent:.1f} % of {disk.size / 1e9:,.1f} GB are free where the clones are.",
                hint="Add space, or set DOCORA_DISK_QUOTA_BYTES: then the clones out of use for longest go.",
                begins=percent < settings.DISK_LOW_PERCENT,
            )


def _missing_redis() -> Iterator[Concern]:
    try:
        _redis()
    except redis.RedisError:
        yield Concern(kind="redis-away", name="redis", subject="Redis", reason="", hint=HINTS["redis"])


def other_troubles() -> Iterator[tuple[str, str, str]]:
    """What the operator is alerted of and no check of /ready asks for, as name, words and hint."""
    try:
        idle = pulse.queues_without_worker()
        # Where jobs wait already, the check of the jobs says so.
        if idle and not pulse.untended_queues():
            yield "workers", f"no worker takes {', '.join(idle)}", HINTS["jobs"]
        for concern in _low_disks():
            if concern.begins:
                yield concern.subject, f"{TITLES[concern.kind]}: {concern.reason}", concern.hint
    except redis.RedisError:
        return  # the checks say so


CHECKS: dict[str, Callable[[], None]] = {
    "database": _database,
    "migrations": _migrations,
    "keys": check_keys,
    "redis": _redis,
    "jobs": _jobs,
    "scheduler": _scheduler,
}
HINTS = {
    "database": "Start Docora if it never ran: `manage.py up` makes the database. Or see DATABASE_URL and its server.",
    "migrations": "Run `manage.py migrate`, or restart with `manage.py up`, which does it.",
    "keys": "Put the missing key behind the new one in ENCRYPTION_KEYS, then run `manage.py rotate_encryption`.",
    "redis": "Start Docora: `manage.py up` starts the embedded Valkey. With REDIS_URL, see that server.",
    "jobs": "Start a worker: `manage.py up`, or `manage.py rqworker` with the queue's name.",
    "scheduler": "Start it: `manage.py up`, or `manage.py scheduler`.",
}

# An alert about a disk is over when this many more percent are free: else it would come and go with a few files.
_DISK_MARGIN = 2
CONCERNS: dict[str, Callable[[], Iterator[Concern]]] = {
    "circuit-open": _open_circuits,
    "app-disabled": _disabled_apps,
    "queue-untended": _queues_without_worker,
    "disk-low": _low_disks,
    "redis-away": _missing_redis,
}
TITLES = {
    "circuit-open": "circuit open",
    "app-disabled": "app disabled",
    "queue-untended": "no worker takes this queue",
    "disk-low": "disk nearly full",
    "redis-away": "does not answer",
}
# Seconds that each must have lasted, or be over, before it is told: a restart is no reason for an alert.
SETTLING = {"queue-untended": 60, "disk-low": 60, "redis-away": 60}
