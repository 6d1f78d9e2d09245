"""An app may have taken a message whose answer was lost: what it has is put right, also after further commits."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import watch_state, watches
from repositories.models import Repository, Watch
from repositories.selection import Selection
from snapshots import history, holdings
from snapshots.delivery import tell as delivery
from snapshots.models import Delivered, Delivery, FileVersion, Snapshot
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def had(watch: Watch, remote: HostedRepository, alice: Receiver, work: Work) -> Watch:
    """The app has two files, and each message that is repeated is one more."""
    tell(remote, work, {"a.md": "one", "b.md": "one"})
    alice.mirror.repeats_are_allowed = True
    alice.requests.clear()
    return watch


def tell(remote: HostedRepository, work: Work, changes: dict[str, str | None]) -> None:
    remote.commit(changes)
    watches.request_snapshot(Repository.objects.get())
    work(also_later_ones=True)


def lose(
    alice: Receiver, remote: HostedRepository, work: Work, changes: dict[str, str | None], path: str | None = None
) -> None:
    """The app takes what it is told of this commit, or of this path in it, and no answer arrives."""
    remote.commit(changes)
    watches.request_snapshot(Repository.objects.get())
    with alice.faults.put(ReceiverFault(path=path, reset=True, after_applying=True)):
        work()
    assert Watch.objects.get().synced_commit != remote.tip()


def assert_right(watch: Watch, alice: Receiver, remote: HostedRepository) -> None:
    watch.refresh_from_db()
    assert watch.synced_commit == remote.tip()
    assert alice.files_of(watch.repository.public_id) == remote.files()
    assert holdings.recorded(watch) == holdings.counted(watch)
    assert not Delivered.objects.filter(again__isnull=False).exists()


def told(alice: Receiver) -> list[tuple[str, str]]:
    return [(request.event, request.payload["file"]["path"]) for request in alice.requests]


@pytest.mark.parametrize(
    ("lost", "then", "event"),
    [
        ({"new.md": "one"}, {"new.md": None}, "delete"),
        ({"a.md": "two"}, {"a.md": "one"}, "update"),
        ({"a.md": None}, {"a.md": "one"}, "create"),
        ({"a.md": None}, {"a.md": "two"}, "create"),
    ],
    ids=["created, then gone", "changed, then changed back", "deleted, then back", "deleted, then another one"],
)
def test_what_was_taken_back_in_the_next_commit_is_put_right(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work, lost: Any, then: Any, event: str
) -> None:
    lose(alice, remote, work, lost)
    alice.requests.clear()
    tell(remote, work, then)
    (path,) = then
    assert told(alice) == [(event, path)]
    assert_right(had, alice, remote)
    assert not Delivery.objects.filter(manual=True).exists()


def test_answers_that_were_lost_in_several_commits_are_all_made_good(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    lose(alice, remote, work, {"first.md": "one"})
    lose(alice, remote, work, {"first.md": None, "second.md": "one", "a.md": "two"})
    lose(alice, remote, work, {"second.md": None, "b.md": None, "a.md": "one"})
    tell(remote, work, {"b.md": "one"})
    assert_right(had, alice, remote)


def test_an_answer_is_not_forgotten_by_a_run_that_is_cut_off_before_it_repeats_the_message(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(alice, remote, work, {"new.md": "one"})
    Watch.objects.update(retry_at=None)
    with monkeypatch.context() as patched:
        patched.setattr(delivery, "_BUDGET", -1.0)
        assert delivery.deliver(had.pk, job_id="cut-off") == 0.0
    tell(remote, work, {"new.md": None})
    assert_right(had, alice, remote)


def test_a_run_that_could_begin_nothing_is_made_good_like_one_that_was_killed(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    """It is written down before the first message; so it counts, whether or not one was sent."""
    with alice.faults.put(ReceiverFault(status=503)):
        remote.commit({"new.md": "one"})
        watches.request_snapshot(Repository.objects.get())
        work()
    tell(remote, work, {"new.md": None})
    assert_right(had, alice, remote)


def test_a_file_that_the_app_refused_or_does_not_want_is_not_deleted(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch_state.choose(had, Selection(exclude=("*.log",)))
    with alice.faults.put(ReceiverFault(status=413, path="large.md")):
        lose(alice, remote, work, {"large.md": "one", "x.log": "one", "z.md": "one"}, path="z.md")
    alice.requests.clear()
    tell(remote, work, {"large.md": None, "x.log": None})
    assert told(alice) == [("create", "z.md")]
    assert_right(had, alice, remote)


@pytest.mark.parametrize("moves_on", [False, True], ids=["at the same commit", "and the repository moves on"])
def test_a_file_that_is_not_wanted_any_more_is_deleted_also_if_its_answer_was_lost(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work, moves_on: bool
) -> None:
    lose(alice, remote, work, {"new.log": "one", "new.md": "one"})
    watch_state.choose(had, Selection(exclude=("*.log",)))
    if moves_on:
        remote.commit({"b.md": "two"})
    watches.request_snapshot(had.repository)
    work(also_later_ones=True)
    had.refresh_from_db()
    assert had.synced_commit == remote.tip()
    wanted = {path: content for path, content in remote.files().items() if path != "new.log"}
    assert alice.files_of(had.repository.public_id) == wanted


def test_a_file_that_is_wanted_again_is_created_also_if_the_answer_to_its_delete_was_lost(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch_state.choose(had, Selection(exclude=("a.md",)))
    lose(alice, remote, work, {"b.md": "two"}, path="a.md")
    assert "a.md" not in alice.files_of(had.repository.public_id)
    watch_state.choose(had, Selection())
    watches.request_snapshot(had.repository)
    work(also_later_ones=True)
    assert_right(had, alice, remote)


def test_nothing_more_is_told_where_every_answer_arrived(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    for content in ("two", "one", "two"):
        tell(remote, work, {"a.md": content, "c.md": content})
    assert told(alice) == [("create", "c.md"), ("update", "a.md"), *[("update", "a.md"), ("update", "c.md")] * 2]
    assert_right(had, alice, remote)


def test_it_is_known_after_the_history_has_forgotten_the_commit(
    had: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    lose(alice, remote, work, {"new.md": "one"})
    remote.commit({"new.md": None})
    with alice.faults.put(ReceiverFault(status=503)):
        Watch.objects.update(retry_at=timezone.now() + timedelta(days=1000))
        watches.request_snapshot(had.repository)
        work()
    Snapshot.objects.update(taken_at=timezone.now() - timedelta(days=900))
    history.prune(had.repository)
    assert not FileVersion.objects.exclude(until=None).exists()
    Watch.objects.update(retry_at=None)
    watches.request_snapshot(had.repository)
    work(also_later_ones=True)
    assert_right(had, alice, remote)
