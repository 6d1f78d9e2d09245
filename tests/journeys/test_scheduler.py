"""`manage.py scheduler` on its own, as further hosts run it."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from docora.processes import valkey
from tests.support import warm_python
from tests.support.service import Service, wait_until
from tests.support.warm_python import Process

pytestmark = pytest.mark.slow


@contextmanager
def scheduler(service: Service) -> Iterator[Process]:
    with (service.data / "scheduler.log").open("w") as log, Path(os.devnull).open() as nothing:
        process = warm_python.start("scheduler", environment=service.environment, stdin=nothing, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def store(service: Service) -> Iterator[None]:
    process = valkey.start(service.data / "valkey" / "valkey.sock", persistent=False)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_it_survives_a_broken_database_and_goes_on_when_it_is_whole(service: Service) -> None:
    service.environment["SCAN_INTERVAL"] = "0.1"
    log = service.data / "scheduler.log"
    with store(service), scheduler(service) as process:
        wait_until(lambda: log.read_text().count("tick failed") >= 2, "the tables are missing, and it says so")
        assert "Traceback" not in log.read_text()
        service.manage("migrate", "-v0")

        def the_last_ticks_succeed() -> bool:
            before = log.read_text().count("tick failed")
            service.manage("check")
            return log.read_text().count("tick failed") == before

        wait_until(the_last_ticks_succeed, "the ticks succeed")
        assert process.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_when_asked(sqlite_service: Service, number: signal.Signals) -> None:
    sqlite_service.environment["SCAN_INTERVAL"] = "3600"
    log = sqlite_service.data / "scheduler.log"
    with scheduler(sqlite_service) as process:
        wait_until(lambda: "the next one is in 3600 s" in log.read_text(), "it is waiting for its next tick")
        process.send_signal(number)
        assert process.wait(timeout=10) == 0
