"""Deliveries that a hint asked for: in the urgent lane while they are short, and first in the others."""

from typing import Any

import pytest
from rq.timeouts import JobTimeoutException

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import hints, messages, watches
from repositories.base import queue
from repositories.models import App, Repository, Watch
from snapshots import jobs, schedule
from snapshots.delivery import tell
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@pytest.fixture
def repository(watch: Watch) -> Repository:
    """Alice has it, and no look that a hint asked for was lately."""
    return Repository.objects.get(pk=watch.repository_id)


def test_an_endpoint_that_is_slow_uses_the_urgent_lane_once_and_then_no_more(
    repository: Repository, remote: HostedRepository, work: Work, alice: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshots.delivery.endpoint._URGENT_TIMEOUT", 0.1)
    monkeypatch.setattr(hints, "INTERVAL", 0.01)
    lanes: list[str] = []
    deliver = tell.deliver

    def note_lane(*arguments: int, lane: str, **rest: Any) -> float | None:
        lanes.append(lane)
        return deliver(*arguments, lane=lane, **rest)

    monkeypatch.setattr(tell, "deliver", note_lane)
    alice.faults.put(ReceiverFault(delay=0.4))
    for text in ("One.\n", "Two.\n"):
        remote.commit({"new.md": text})
        hints.give(repository, by_hook=True)
        work()
        assert alice.files_of(repository.public_id) == remote.files()
    assert lanes == [queue.URGENT, queue.DELIVERIES, queue.DELIVERIES]
    assert repository.watches.get().app.slow_since is None


def test_a_large_change_begins_in_the_urgent_lane_and_ends_in_the_ordinary_one(
    repository: Repository, remote: HostedRepository, work: Work, alice: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tell, "_URGENT_BUDGET", -1.0)
    remote.commit({f"page-{n}.md": f"{n}\n" for n in range(20)})
    hints.give(repository, by_hook=True)
    jobs.look_now(repository.pk)
    watch = repository.watches.get()
    assert tell.deliver(watch.pk, job_id="urgent", lane=queue.URGENT) is None
    assert queue.named(queue.DELIVERIES).job_ids == [f"deliver-{watch.pk}"]
    work()
    assert alice.files_of(repository.public_id) == remote.files()


def test_an_urgent_delivery_whose_time_is_up_goes_on_in_the_ordinary_lane(
    repository: Repository, remote: HostedRepository, work: Work, alice: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver = tell.deliver

    def run_out_of_time(*arguments: int, lane: str, **rest: Any) -> float | None:
        if lane == queue.URGENT:
            raise JobTimeoutException
        return deliver(*arguments, lane=lane, **rest)

    monkeypatch.setattr(tell, "deliver", run_out_of_time)
    remote.commit({"new.md": "New.\n"})
    hints.give(repository, by_hook=True)
    work()
    assert alice.files_of(repository.public_id) == remote.files()


def test_no_more_urgent_deliveries_than_the_lane_serves_at_once(
    repository: Repository, remote: HostedRepository, bob_app: App, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches.watch(bob_app, remote.url)
    work()
    monkeypatch.setattr(tell, "_MOST_URGENT", 1)
    messages.deliver(404, lane=queue.DELIVERIES)
    remote.commit({"new.md": "New.\n"})
    hints.give(repository, by_hook=True)
    jobs.look_now(repository.pk)
    assert len([name for name in queue.named(queue.URGENT).job_ids if "deliver" in name]) == 1
    first, *others = queue.named(queue.DELIVERIES).job_ids
    assert first != "deliver-404"
    assert others == ["deliver-404"]


def test_the_tick_leaves_watches_to_their_urgent_jobs(watch: Watch) -> None:
    queue.connection().set("docora:last-reconciled", "now")
    Watch.objects.update(status="scanning")
    messages.deliver_now(watch.pk)
    schedule.tick()
    watch.refresh_from_db()
    assert watch.status == "scanning"


def test_unwatching_takes_back_the_urgent_jobs(watch: Watch, alice_app: App) -> None:
    hints.give(watch.repository, by_hook=True)
    Repository.objects.update(sequence=1)
    messages.look_now(watch.repository_id)
    messages.deliver_now(watch.pk)
    watches.unwatch(alice_app, watch.repository.public_id)
    assert queue.named(queue.URGENT).job_ids == []
