"""When a change was noticed, and what the watched ref stands for now: in rows, messages and the API."""

from datetime import timedelta

import pytest
from django.utils import timezone

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import accounts, circuit, watches
from repositories.base import queue
from repositories.git import clones
from repositories.models import Repository, Watch
from snapshots import schedule
from snapshots.delivery.payloads import iso
from snapshots.look import take_snapshot
from snapshots.models import Snapshot
from tests.support.api import Api
from tests.support.worker import Look, Work

pytestmark = pytest.mark.django_db(transaction=True)

A_WHILE = timedelta(minutes=10)


def newest() -> Snapshot:
    snapshot = Snapshot.objects.order_by("sequence").last()
    assert snapshot
    return snapshot


def test_a_message_says_when_the_change_was_noticed(
    watch: Watch, remote: HostedRepository, alice: Receiver, look: Look
) -> None:
    before = timezone.now()
    remote.commit({"README.md": "# New\n"})
    look()
    snapshot = newest()
    assert snapshot.noticed_at
    assert snapshot.fetched_at
    assert before < snapshot.noticed_at < snapshot.fetched_at < snapshot.taken_at
    assert alice.requests[-1].payload["noticed_at"] == iso(snapshot.noticed_at)
    assert alice.problems == []


def test_the_look_of_the_scheduler_dates_a_change_however_long_its_job_waits(
    watch: Watch, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": "# New\n"})
    Repository.objects.update(next_check_at=timezone.now())
    schedule.tick()
    noticed_at = Repository.objects.get().noticed_at
    assert noticed_at
    Repository.objects.update(noticed_at=noticed_at - A_WHILE)
    work()
    assert newest().noticed_at == noticed_at - A_WHILE
    assert Repository.objects.get().noticed_at is None


def test_the_apps_do_not_wait_for_what_a_look_writes_down_of_itself(
    watch: Watch, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit({"README.md": "# New\n"})
    queued = []
    monkeypatch.setattr(circuit, "count_success", lambda _: queued.append(queue.length(queue.DELIVERIES)))
    take_snapshot(watch.repository_id, job_id="look")
    assert queued == [1]


def test_the_first_of_several_notices_counts(watch: Watch, remote: HostedRepository, look: Look) -> None:
    first = timezone.now() - A_WHILE
    Repository.objects.update(noticed_at=first)
    watches.notice_change(watch.repository_id)
    remote.commit({"README.md": "# New\n"})
    look()
    assert newest().noticed_at == first


def test_a_notice_without_a_change_does_not_date_the_next_one(
    watch: Watch, remote: HostedRepository, look: Look
) -> None:
    Repository.objects.update(noticed_at=timezone.now() - A_WHILE)
    look()
    remote.commit({"README.md": "# New\n"})
    look()
    noticed_at = newest().noticed_at
    assert noticed_at
    assert timezone.now() - noticed_at < A_WHILE / 2


def test_a_notice_that_comes_during_a_look_is_not_answered_by_it(
    watch: Watch, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of the next commit. The notice before it was answered by another look meanwhile."""
    Repository.objects.update(noticed_at=timezone.now() - A_WHILE)
    newer, ask = timezone.now(), clones.look

    def ask_and_be_noticed(remote: clones.Remote, ref: str) -> clones.Tip | None:
        Repository.objects.update(noticed_at=newer)
        return ask(remote, ref)

    monkeypatch.setattr(clones, "look", ask_and_be_noticed)
    look()
    assert Repository.objects.get().noticed_at == newer


def test_a_host_that_does_not_answer_is_no_change(watch: Watch, git_host: GitHost) -> None:
    Repository.objects.update(next_check_at=timezone.now())
    with git_host.faults.put(GitFault(status=503)):
        schedule.tick()
    assert queue.is_alive(f"snapshot-{watch.repository_id}")
    assert Repository.objects.get().noticed_at is None


def test_a_snapshot_from_before_noticing_was_kept_is_dated_by_when_it_was_taken(
    watch: Watch, remote: HostedRepository, alice: Receiver, work: Work
) -> None:
    Snapshot.objects.update(noticed_at=None)
    watches.watch(watch.app, remote.url)
    work()
    assert alice.requests[-1].payload["noticed_at"] == iso(newest().taken_at)


class TestTheBranch:
    def test_is_in_every_message_and_in_the_state(self, watch: Watch, alice: Receiver) -> None:
        assert {request.payload["ref_name"] for request in alice.requests} == {"main"}
        api = Api(accounts.rotate_bearer_token(watch.app))
        state = api.get(f"/api/repositories/{watch.repository.public_id}").json()
        assert (state["branch"], state["ref_name"]) == (None, "main")
        assert api.get("/api/repositories").json()["repositories"][0]["ref_name"] == "main"

    @pytest.mark.parametrize("by", ["the scheduler", "a look with git"])
    def test_follows_a_default_branch_that_is_renamed_at_the_same_commit(
        self, watch: Watch, remote: HostedRepository, alice: Receiver, look: Look, work: Work, by: str
    ) -> None:
        tip = remote.tip()
        assert tip
        remote.point("trunk", tip)
        remote.set_default_branch("trunk")
        if by == "the scheduler":
            Repository.objects.update(next_check_at=timezone.now())
            schedule.tick()
            work()
        else:
            look()
        assert (Repository.objects.get().branch, newest().branch) == ("trunk", "trunk")
        alice.requests.clear()
        remote.commit({"README.md": "# New\n"})
        look()
        assert alice.requests[-1].payload["ref_name"] == "trunk"

    def test_is_the_tag_that_was_asked_for(
        self, watch: Watch, remote: HostedRepository, alice: Receiver, work: Work
    ) -> None:
        remote.git("tag", "v1", "main")
        alice.requests.clear()
        watches.watch(watch.app, remote.url, ref="v1")
        work()
        assert {request.payload["ref_name"] for request in alice.requests} == {"v1"}
