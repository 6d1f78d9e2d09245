"""`manage.py up`: starts, serves, survives, stops."""

import json
import re
import urllib.request

import psutil
import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from docora import processes
from tests.service import Service

pytestmark = pytest.mark.slow


def run_of(service: Service) -> str:
    """The name of the run that holds the data, which marks all of its processes."""
    return (service.data / "up.lock").read_text().split()[1]


def members(service: Service) -> "list[psutil.Process]":
    """Every process that has the service's data directory in its environment, without the supervisor."""
    return [process for process in psutil.process_iter() if is_of(process, service)]


def is_of(process: psutil.Process, service: Service) -> bool:
    try:
        return (
            process.environ().get("DOCORA_DATA_DIR") == str(service.data)
            and process.status() != psutil.STATUS_ZOMBIE
        )
    except (psutil.Error, OSError):
        return False


def child(service: Service, name: str) -> psutil.Process:
    """The newest process started under this name."""
    found = [
        process
        for process in psutil.process_iter()
        if re.fullmatch(rf"{run_of(service)}\.{name}\.\d+", environment(process).get(processes.MARK, ""))
        and process.ppid() == service.process.pid  # type: ignore[union-attr]
    ]
    return found[-1]


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


def get(service: Service, path: str) -> dict[str, object]:
    with urllib.request.urlopen(service.url + path, timeout=10) as answer:  # noqa: S310
        return dict(json.load(answer))


def queue(service: Service, name: str) -> Queue:
    return Queue(name, connection=service.redis(), serializer=JSONSerializer)


def test_it_starts_serves_and_says_where_things_are(service: Service) -> None:
    service.start()
    assert get(service, "/health")["status"] == "ok"
    for line in (f"{service.url}/admin/", f"{service.url}/api/docs", str(service.data / "logs"), "Ctrl-C"):
        assert line in service.output
