"""/ready: 200 while the service can do its work, 503 with the reason while it cannot."""

import re
import time
from typing import Any

import pytest
import redis
from django.test import Client

from docora import condition
from repositories.base import connections, pulse, queue
from snapshots.schedule import tick
from tests.support.worker import put_worker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def fresh_connection(fake_redis: redis.Redis) -> None:
    condition._impatient_connection.cache_clear()


def checks(client: Client) -> tuple[int, dict[str, str]]:
    answer = client.get("/ready")
    return answer.status_code, answer.json()["checks"]


def test_after_a_tick_it_is_ready(client: Client) -> None:
    status, found = checks(client)
    assert (status, found["scheduler"]) == (503, "the scheduler has not ticked yet")
    tick()
    for name in queue.ALL:
        put_worker(name)
    assert checks(client) == (200, dict.fromkeys(condition.CHECKS, "ok"))


def test_a_scheduler_that_stopped_is_noticed(client: Client) -> None:
    queue.connection().set(pulse._LAST_TICK, time.time() - 155)
    status, found = checks(client)
    assert status == 503
    assert re.fullmatch(r"the scheduler ticked 1\d\d s ago", found["scheduler"])


def test_a_job_that_nobody_takes_is_noticed(client: Client, settings: Any) -> None:
    tick()
    queue.enqueue(queue.SNAPSHOTS, "snapshots.jobs.take_snapshot", 1, job_id="snapshot-1", timeout=60)
    status, found = checks(client)
    assert (status, found["jobs"]) == (503, "jobs wait in snapshots, and no worker takes that queue")
    put_worker("snapshots")
    assert checks(client)[0] == 200
    settings.READY_JOB_AGE = -1
    assert checks(client)[0] == 503


def test_without_redis_it_says_so_and_no_more(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "connect", lambda **_: redis.Redis(unix_socket_path="/nowhere/valkey.sock"))
    status, found = checks(client)
    assert (status, found["redis"], found["database"]) == (503, "Redis does not answer", "ok")
    assert "nowhere" not in str(found)
