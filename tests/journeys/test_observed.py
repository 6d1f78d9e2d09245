"""What an operator sees of a running service: one request followed through all processes, and its numbers."""

import json
import socket
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from docora.demo.receiver import Receiver
from tests.support.delivery_cast import Stage
from tests.support.metrics import TOKEN, Sampled, needs_promtool, promtool
from tests.support.service import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("observed"), pytest.mark.any_database]

FILES = 5


class Observed:
    """A service that one app has asked, under an id of its own, to watch one repository, and that has told it all."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.logs = stage, stage.service.data / "logs"
        with Receiver(webhook_key="a-key-of-sixteen-or-more") as receiver:
            [bearer] = stage.onboard(receiver)
            remote = stage.host.create("acme/handbook")
            remote.commit({f"docs/{number}.md": "text\n" for number in range(FILES)})
            self.repository_id = self._watch(bearer, remote.url)
            wait_until(lambda: len(receiver.files_of(self.repository_id)) == FILES, "everything is delivered")
            wait_until(lambda: "has acme/handbook" in self.text("deliveries-1"), "the run has ended")
        wait_until(lambda: self.scrape()["docora_deliveries_total", "app_class=fast", "outcome=accepted"] == FILES)

    def _watch(self, bearer: str, url: str) -> str:
        request = urllib.request.Request(  # noqa: S310  our own server
            f"{self.stage.service.url}/api/repositories",
            data=json.dumps({"github_url": url}).encode(),
            headers={
                "Authorization": f"Bearer {bearer}",
                "Content-Type": "application/json",
                "X-Request-ID": "the-journey-of-one-request",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  our own server
            assert answer.headers["X-Request-ID"] == "the-journey-of-one-request"
            return str(json.load(answer)["repository_id"])

    def text(self, process: str) -> str:
        return (self.logs / f"{process}.log").read_text()

    def lines(self, process: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text(process).splitlines()]

    def metrics(self) -> str:
        request = urllib.request.Request(  # noqa: S310  our own server
            f"{self.stage.service.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  our own server
            return str(answer.read().decode())

    def scrape(self) -> Sampled:
        return Sampled(self.metrics())


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("observed")
    # One tick alone: else the scheduler may ask for the look before the request does.
    with Stage(folder, DOCORA_METRICS_TOKEN=TOKEN, DOCORA_LOG_LEVEL="DEBUG", SCAN_INTERVAL="3600") as stage:
        yield Observed(stage)


def test_every_line_of_every_process_is_json_with_its_host(observed: Observed) -> None:
    for process in ("web", "scheduler", "snapshots-1", "deliveries-1", "deliveries-slow-1"):
        for line in observed.lines(process):
            assert {"timestamp", "level", "logger", "event", "host", "pid"} <= set(line), line


def test_one_request_is_followed_from_the_web_to_the_last_delivery(observed: Observed) -> None:
    [asked] = [line for line in observed.lines("web") if line["event"].startswith("POST /api/repositories 201")]
    [told] = [line for line in observed.lines("deliveries-1") if "has acme/handbook" in line["event"]]
    locked = [
        line
        for line in observed.lines("snapshots-1")
        if "acquired lock on" in line["event"] and line["job_id"].startswith("snapshot-")
    ]
    for line in (asked, told, locked[0]):
        assert line["request_id"] == "the-journey-of-one-request"
    assert told["job_id"].startswith("deliver-")
    assert told["repository"] == locked[0]["repository"] == observed.repository_id
    assert told["app"].startswith("app_")
    assert {line["host"] for line in (asked, told, locked[0])} == {socket.gethostname()}


def test_rqs_chatter_is_at_debug(observed: Observed) -> None:
    chatter = [line for line in observed.lines("deliveries-1") if line["logger"].startswith("rq")]
    assert chatter
    assert "info" not in {line["level"] for line in chatter}


def test_the_numbers_of_a_running_service(observed: Observed) -> None:
    found = observed.scrape()
    assert found["docora_snapshots_total"] == 1
    for queue in ("snapshots", "deliveries", "deliveries-slow"):
        alive = sum(found["docora_workers", f"queue={queue}", f"state={state}"] for state in ("idle", "busy"))
        assert alive == 1
    assert found["docora_worker_hosts"] == 1
    assert found["docora_disk_free_bytes", f"host={socket.gethostname()}"] > 0
    assert found["docora_scheduler_last_tick_age_seconds"] < 60
    assert (found["docora_up", "part=redis"], found["docora_up", "part=database"]) == (1, 1)


@needs_promtool
def test_promtool_has_nothing_against_them(observed: Observed) -> None:
    assert promtool("check", "metrics", given=observed.metrics()) == ""
