"""For load balancers and alarms, without a login: does this process answer, which version is it, can it work?"""

import time
from collections.abc import Callable
from functools import cache

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

import docora
from repositories.base import connections, pulse

_started = time.monotonic()


@require_safe
@never_cache
def health(_request: HttpRequest) -> JsonResponse:
    now = timezone.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return JsonResponse({"status": "ok", "timestamp": now, "uptime": round(time.monotonic() - _started, 3)})


@require_safe
@never_cache
def version(_request: HttpRequest) -> JsonResponse:
    return JsonResponse({"version": docora.__version__})


class NotReady(Exception):
    """Its text is shown to anybody who asks."""


@require_safe
@never_cache
def ready(_request: HttpRequest) -> JsonResponse:
    """200 if Docora can do its work now, 503 if not."""
    checks = {name: _outcome(check) for name, check in _CHECKS.items()}
    is_ready = all(outcome == "ok" for outcome in checks.values())
    answer = {"status": "ready" if is_ready else "not ready", "checks": checks}
    return JsonResponse(answer, status=200 if is_ready else 503)


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except NotReady as reason:
        return str(reason)
    except DatabaseError:
        return "the database does not answer"
    except redis.RedisError:
        return "Redis does not answer"
    return "ok"


def _database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@cache  # what is applied stays applied; an error is not kept
def _migrations() -> None:
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise NotReady("migrations are missing: run manage.py migrate")


@cache
def _impatient_connection() -> redis.Redis:
    return connections.connect_impatiently(timeout=2)


def _redis() -> None:
    _impatient_connection().ping()


def _jobs() -> None:
    _redis()
    waited = pulse.seconds_waited()
    if waited > settings.READY_JOB_AGE:
        raise NotReady(f"a job has been waiting for {waited:.0f} s")
    if untended := pulse.untended_queues():
        raise NotReady(f"jobs wait in {', '.join(untended)}, and no worker takes that queue")


def _scheduler() -> None:
    _redis()
    since = pulse.seconds_since_tick()
    if since is None:
        raise NotReady("the scheduler has not ticked yet")
    if since > 2 * settings.SCAN_INTERVAL + 30:
        raise NotReady(f"the scheduler ticked {since:.0f} s ago")


_CHECKS: dict[str, Callable[[], None]] = {
    "database": _database,
    "migrations": _migrations,
    "redis": _redis,
    "jobs": _jobs,
    "scheduler": _scheduler,
}
