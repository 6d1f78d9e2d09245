"""Looks that hints ask for: one for all that come together, another for what comes meanwhile, never a long one."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from unittest.mock import Mock

import pytest
import redis
from django.utils import timezone
from pytest_django import Settings
from rq import Retry
from rq.timeouts import JobTimeoutException

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import hints, messages, timing, watches
from repositories.base import queue
from repositories.git import clones
from repositories.models import App, Repository, Watch
from repositories.repo_lock import repo_lock
from repositories.repo_lock.slots import fetch_slot
from snapshots import hinted, jobs, manifest
from snapshots.look import take_snapshot
from snapshots.models import Snapshot
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@pytest.fixture
def repository(watch: Watch) -> Repository:
    """Alice has it, and no look that a hint asked for was lately."""
    return Repository.objects.get(pk=watch.repository_id)


def waiting(name: str) -> list[str]:
    return queue.named(name).job_ids


def hint(repository: Repository, *, by_hook: bool = True) -> None:
    hints.give(repository, by_hook=by_hook)


def after_the_next_question(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do this once, when the host has told its tip and the look does not know of what comes now."""
    look = clones.look

    def look_and_be_overtaken(*arguments: object) -> object:
        tip = look(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(clones, "look", look)
        act()
        return tip

    monkeypatch.setattr(clones, "look", look_and_be_overtaken)


def test_a_hint_is_answered_by_one_look_and_an_urgent_delivery(
    repository: Repository, remote: HostedRepository, git_host: GitHost, work: Work, alice: Receiver
) -> None:
    remote.commit({"new.md": "New.\n"})
    asked = git_host.count(remote, "ls-refs")
    for _ in range(5):
        hint(repository)
    jobs.look_now(repository.pk)
    assert git_host.count(remote, "ls-refs") - asked == 1
    assert waiting(queue.URGENT)[-1] == f"hint-deliver-{repository.watches.get().pk}"
    assert waiting(queue.DELIVERIES) == []
    work()
    assert alice.files_of(repository.public_id) == remote.files()
    assert git_host.count(remote, "ls-refs") - asked == 1


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The repositories for which an urgent look was queued."""
    keys: list[int] = []
    look_now = messages.look_now

    def counted(key: int) -> None:
        look_now(key)
        keys.append(key)

    monkeypatch.setattr(messages, "look_now", counted)
    return keys


def test_a_hint_whose_look_is_still_in_line_asks_for_nothing_more(
    repository: Repository, remote: HostedRepository, work: Work, alice: Receiver, asked: list[int]
) -> None:
    hint(repository)
    remote.commit({"new.md": "New.\n"})
    queue.connection().delete(f"docora:hint-asked:{repository.pk}")  # it stands in line for long
    hint(repository)
    assert asked == [repository.pk]
    work()
    assert alice.files_of(repository.public_id) == remote.files()


def test_a_hint_asks_for_nothing_more_while_a_job_has_the_ones_before_it(
    repository: Repository, asked: list[int]
) -> None:
    hint(repository)
    queue.named(queue.URGENT).pop_job_id()  # a worker has taken it, and has read the hint
    seen = hints.newest(repository.pk)
    hint(repository)
    assert asked == [repository.pk]
    assert seen
    assert not hints.answer(repository.pk, seen), "that job does not look again"


def test_the_job_of_an_answered_hint_does_not_stand_for_the_next_one(
    repository: Repository, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    hint(repository)
    seen = hints.newest(repository.pk)
    assert seen
    assert hints.answer(repository.pk, seen)
    queue.connection().delete(queue.key_of(queue.URGENT))
    with monkeypatch.context() as patch, pytest.raises(redis.ConnectionError):
        patch.setattr(queue, "enqueue_now", Mock(side_effect=redis.ConnectionError))
        hint(repository)
    hint(repository)
    assert asked == [repository.pk] * 2


def test_nothing_stays_of_a_hint_that_is_answered_before_its_job_is_noted(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_at_once(key: int) -> None:
        seen = hints.newest(key)
        assert seen
        assert hints.answer(key, seen)

    monkeypatch.setattr(messages, "look_now", look_at_once)
    hint(repository)
    assert not queue.connection().exists(f"docora:hint-asked:{repository.pk}")


def test_a_hint_asks_again_where_no_job_could_be_queued_for_the_one_before(
    repository: Repository, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(redis.ConnectionError):
        patch.setattr(queue, "enqueue_now", Mock(side_effect=redis.ConnectionError))
        hint(repository)
    assert asked == []
    hint(repository)
    assert asked == [repository.pk]


def test_a_hint_asks_again_when_the_job_for_the_ones_before_it_is_not_heard_of(
    repository: Repository, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "_ASKED_FOR", 1)
    hint(repository)
    queue.connection().delete(queue.key_of(queue.URGENT))
    time.sleep(0.01)
    hint(repository)
    assert asked == [repository.pk] * 2


def noticed_at() -> datetime:
    noticed = Snapshot.objects.order_by("sequence").last().noticed_at  # type: ignore[union-attr]
    assert noticed
    return noticed


def test_the_snapshot_is_dated_by_the_first_hint_that_no_look_has_answered(
    repository: Repository, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "INTERVAL", 0.001)
    for _ in range(2):
        remote.commit({"new.md": f"{time.monotonic()}\n"})
        before = timezone.now()
        hint(repository)
        after_the_first = timezone.now()
        hint(repository)
        jobs.look_now(repository.pk)
        assert before < noticed_at() < after_the_first


def test_a_hint_that_comes_during_a_look_is_not_dated_by_those_before(repository: Repository) -> None:
    hint(repository)
    seen = hints.newest(repository.pk)
    assert seen
    after_the_first = timezone.now()
    hint(repository)
    assert not hints.answer(repository.pk, seen)
    left = hints.newest(repository.pk)
    assert left
    assert left.at > after_the_first
    assert hints.answer(repository.pk, left)
    assert hints.newest(repository.pk) is None


@pytest.mark.parametrize("takes_long", [False, True], ids=["urgent queue", "ordinary queue"])
def test_a_hint_that_comes_during_a_look_causes_another(
    repository: Repository,
    remote: HostedRepository,
    work: Work,
    alice: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    takes_long: bool,
) -> None:
    """The look has asked for the tip, then comes the next push with its hint: the older commit is not the last word."""
    if takes_long:
        hints.note_long(repository.pk)
    monkeypatch.setattr(hints, "INTERVAL", 0.01)
    pushes = [{"late.md": "Late.\n"}]
    look = clones.look

    def look_and_be_overtaken(*arguments: object) -> object:
        tip = look(*arguments)  # type: ignore[arg-type]
        if pushes:
            remote.commit(pushes.pop())
            hint(repository)
        return tip

    monkeypatch.setattr(clones, "look", look_and_be_overtaken)
    remote.commit({"early.md": "Early.\n"})
    hint(repository)
    work(also_later_ones=True)
    work(also_later_ones=True)
    assert alice.files_of(repository.public_id) == remote.files()
    assert hints.newest(repository.pk) is None


def test_a_look_of_the_ordinary_queue_is_not_the_last_where_a_newer_hint_has_come(
    repository: Repository, remote: HostedRepository, work: Work, alice: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "INTERVAL", 0.01)

    def push_late() -> None:
        remote.commit({"late.md": "Late.\n"})
        hint(repository)

    after_the_next_question(monkeypatch, push_late)
    remote.commit({"early.md": "Early.\n"})
    hint(repository)
    queue.connection().delete(queue.key_of(queue.URGENT))
    again = jobs.take_snapshot(repository.pk)
    assert isinstance(again, Retry)
    assert hints.newest(repository.pk)
    jobs.take_snapshot(repository.pk)
    assert hints.newest(repository.pk) is None
    work()
    assert alice.files_of(repository.public_id) == remote.files()


def test_looks_that_hints_ask_for_keep_a_distance(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[float] = []
    monkeypatch.setattr(hinted, "take_snapshot", lambda *_, **__: begun.append(time.monotonic()))
    for _ in range(3):
        hint(repository)
        while hinted.look(repository.pk, job_id="test") is not None:
            pass
    assert len(begun) == 3
    assert all(later - earlier > 0.9 * hints.INTERVAL for earlier, later in pairwise(begun))


def test_a_worker_that_keeps_the_distance_lets_other_repositories_go_first(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "INTERVAL", 100.0)
    hint(repository)
    hints.claim_look(repository.pk)
    queue.enqueue_now(queue.URGENT, "builtins.abs", 1, job_id="another", timeout=10)
    assert hinted.look(repository.pk, job_id="test") == 0.0, "it waited for its own look"
    assert hints.newest(repository.pk)


def test_a_busy_clone_sends_the_hint_to_the_ordinary_queue(
    repository: Repository, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("snapshots.look._URGENT_PATIENCE", 0.1)
    remote.commit({"new.md": "New.\n"})
    hint(repository)
    hinted_at = timezone.now()
    with repo_lock(repository.clone_key, job_id="a long fetch"):
        assert hinted.look(repository.pk, job_id="hint") is None
    assert waiting(queue.SNAPSHOTS) == [f"snapshot-{repository.pk}"]
    work()
    assert noticed_at() < hinted_at
    assert hints.newest(repository.pk) is None


def test_first_syncs_that_hold_every_fetch_slot_do_not_delay_a_hint(
    repository: Repository, remote: HostedRepository, settings: Settings, work: Work, alice: Receiver
) -> None:
    settings.FETCHES_PER_HOST = 1
    remote.commit({"new.md": "New.\n"})
    hint(repository)
    with fetch_slot(repository.remote.address, job_id="a first sync"):
        assert hinted.look(repository.pk, job_id="hint") is None
    work()
    assert alice.files_of(repository.public_id) == remote.files()


def test_a_look_that_takes_long_goes_on_in_the_ordinary_queue_and_so_do_the_next_hints(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out_of_time(*_: object, **__: object) -> None:
        raise JobTimeoutException

    monkeypatch.setattr(hinted, "take_snapshot", run_out_of_time)
    hint(repository)
    assert hinted.look(repository.pk, job_id="hint") is None
    assert waiting(queue.SNAPSHOTS) == [f"snapshot-{repository.pk}"]
    queue.drop(messages.urgent_look_job(repository.pk))
    hint(repository)
    assert waiting(queue.SNAPSHOTS) == [f"snapshot-{repository.pk}"]
    assert waiting(queue.URGENT) == []


def test_a_host_that_fails_is_tried_again_and_the_hint_is_kept(
    repository: Repository, remote: HostedRepository, git_host: GitHost, work: Work, alice: Receiver
) -> None:
    remote.commit({"new.md": "New.\n"})
    hint(repository)
    with git_host.faults.put(GitFault(status=503)):
        work()
    work(also_later_ones=True)
    assert alice.files_of(repository.public_id) == remote.files()


def test_a_hint_that_comes_during_a_probe_is_not_lost(
    repository: Repository, remote: HostedRepository, work: Work, alice: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def push_late() -> None:
        remote.commit({"late.md": "Late.\n"})
        hint(repository)
        assert hinted.look(repository.pk, job_id="hint") is None, "the probe has the circuit to itself"

    after_the_next_question(monkeypatch, push_late)
    past = timezone.now() - timedelta(seconds=1)
    Repository.objects.update(circuit_open_until=past, consecutive_failures=5)
    jobs.take_snapshot(repository.pk)
    queue.connection().delete(queue.key_of(queue.URGENT))
    work()
    assert alice.files_of(repository.public_id) == remote.files()


def test_a_look_that_saw_an_older_commit_than_one_that_is_still_being_hashed_looks_again(
    repository: Repository, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit({"new.md": "older"})
    write, unwritten = manifest.write, Mock(return_value=False)

    def fetch_the_newer_one() -> None:
        remote.commit({"new.md": "newer"})
        with monkeypatch.context() as patched:
            patched.setattr(manifest, "write", unwritten)
            take_snapshot(repository.pk, job_id="overtakes")

    after_the_next_question(monkeypatch, fetch_the_newer_one)
    take_snapshot(repository.pk, job_id="overtaken")
    write(*unwritten.call_args.args, **unwritten.call_args.kwargs)
    assert Repository.objects.get().commit_sha == remote.tip()


@pytest.fixture(params=["without a snapshot", "that takes long"])
def ordinary(
    request: pytest.FixtureRequest, alice_app: App, remote: HostedRepository, git_host: GitHost, work: Work
) -> Repository:
    """A repository whose hints use the ordinary queue. Its look waits there behind another one."""
    watch = watches.watch(alice_app, remote.url)
    if request.param == "that takes long":
        work()
        hints.note_long(watch.repository_id)
        remote.commit({"new.md": "New.\n"})
    queue.connection().delete(f"rq:queue:{queue.SNAPSHOTS}", f"rq:job:snapshot-{watch.repository_id}")
    messages.take_snapshot(404, planned=True)
    messages.take_snapshot(watch.repository_id, planned=True)
    return Repository.objects.get()


def test_a_hint_in_the_ordinary_queue_comes_before_all_that_waits(ordinary: Repository) -> None:
    hint(ordinary)
    assert waiting(queue.URGENT) == []
    assert waiting(queue.SNAPSHOTS) == [f"snapshot-{ordinary.pk}", "snapshot-404"]


def test_a_hint_in_the_ordinary_queue_dates_the_snapshot_and_counts_as_a_hook_that_arrives(
    ordinary: Repository, work: Work, alice: Receiver, remote: HostedRepository
) -> None:
    before = timezone.now()
    hint(ordinary)
    after = timezone.now()
    work()
    assert before < noticed_at() < after
    assert hints.newest(ordinary.pk) is None
    assert hints.hooked([ordinary.pk])
    assert alice.files_of(ordinary.public_id) == remote.files()


def test_a_look_of_the_ordinary_queue_answers_hints_and_its_deliveries_are_urgent(
    repository: Repository, remote: HostedRepository, git_host: GitHost
) -> None:
    remote.commit({"new.md": "New.\n"})
    hint(repository)
    jobs.take_snapshot(repository.pk)
    assert f"hint-deliver-{repository.watches.get().pk}" in waiting(queue.URGENT)
    asked = git_host.count(remote, "ls-refs")
    jobs.look_now(repository.pk)
    assert git_host.count(remote, "ls-refs") == asked


def test_a_look_of_the_ordinary_queue_that_fails_answers_no_hint(
    repository: Repository, remote: HostedRepository, git_host: GitHost
) -> None:
    remote.commit({"new.md": "New.\n"})
    hint(repository)
    with git_host.faults.put(GitFault(status=503)):
        assert jobs.take_snapshot(repository.pk)
    assert hints.newest(repository.pk)
    assert jobs.take_snapshot(repository.pk) is None
    assert hints.newest(repository.pk) is None


@pytest.fixture
def pause_until_next_look(repository: Repository) -> Callable[[], float]:
    def pause() -> float:
        timing.plan_next_look(repository, last_change=timezone.now() - timedelta(days=1))
        planned = Repository.objects.get()
        assert planned.last_checked_at
        return (planned.next_check_at - planned.last_checked_at).total_seconds()

    return pause


def test_planned_looks_are_rarer_where_hooks_arrive_until_one_is_lost(
    repository: Repository,
    settings: Settings,
    remote: HostedRepository,
    work: Work,
    pause_until_next_look: Callable[[], float],
) -> None:
    settings.HOOKED_RESCAN_INTERVAL = 3600
    hint(repository, by_hook=False)
    assert pause_until_next_look() <= settings.RESCAN_INTERVAL
    hint(repository)
    assert pause_until_next_look() >= 0.9 * 3600
    work()
    remote.commit({"lost.md": "No hook tells of it.\n"})
    watches.request_snapshot(repository, planned=True)
    work()
    assert pause_until_next_look() <= settings.RESCAN_INTERVAL
