"""The circuit breaker: opened once, announced once, probed once, closed by itself."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.utils import timezone
from pytest_django import Settings

from docora.console.retries import retry
from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import circuit, watches
from repositories.errors import HostUnavailable, LockTimeoutError
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from snapshots.look import take_snapshot
from snapshots.models import Snapshot
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def look() -> float | None:
    return take_snapshot(Repository.objects.get().pk, job_id="test")


def end_of_cooldown() -> None:
    Repository.objects.update(circuit_open_until=timezone.now() - timedelta(seconds=1))


def time_of_probe() -> None:
    Repository.objects.update(probe_at=timezone.now() - timedelta(seconds=1))


def notices(receiver: Receiver) -> list[str]:
    return [request.event for request in receiver.requests if request.event.startswith("sync_")]


def test_pauses_grow_until_the_circuit_opens(
    alice_app: App, alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    settings.RETRY_BASE_DELAY = 1
    watches.watch(alice_app, remote.url)
    work()
    with git_host.faults.put(GitFault(status=503)):
        pauses = [look() for _ in range(5)]
        assert pauses.pop() == 30
        assert all(full <= (pause or 0) <= 1.25 * full for full, pause in zip([1, 2, 4, 8], pauses, strict=True))
        questions = git_host.count(remote, "advertise")
        assert look() is None
    assert git_host.count(remote, "advertise") == questions, "an open circuit asks nothing"
    assert Watch.objects.get().status == WatchStatus.FAILED
    repository = Repository.objects.get()
    assert repository.next_check_at == repository.probe_at


def test_a_host_that_does_not_answer_is_asked_again_soon_and_nothing_is_fetched(
    alice_app: App, alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"news.md": "news"})
    fetches = git_host.count(remote, "fetch")
    with git_host.faults.put(GitFault(kinds={"advertise"}, status=503)):
        for _ in range(5):
            look()
        opened = Repository.objects.get()
        pauses = []
        for _ in range(6):
            assert look() is None, "not before it is due"
            time_of_probe()
            pauses.append(look())
    assert pauses == [60, 120, 300, 600, 1800, 1800]
    assert git_host.count(remote, "fetch") == fetches
    assert Repository.objects.get().circuit_open_until == opened.circuit_open_until, "apps were told this time"
    time_of_probe()
    look()
    work()
    assert Repository.objects.get().circuit_open_until is None
    assert alice.files[watch.repository.public_id] == remote.files()


def test_a_repository_that_fails_while_it_is_fetched_waits_for_the_cooldown(
    alice_app: App, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    watches.watch(alice_app, remote.url)
    work()
    remote.commit({"news.md": "news"})
    with git_host.faults.put(GitFault(kinds={"fetch"}, status=503)):
        pauses = [look() for _ in range(5)]
    repository = Repository.objects.get()
    assert (pauses[-1], repository.probe_at) == (None, None)
    assert repository.next_check_at == repository.circuit_open_until


def test_a_host_that_answers_again_is_asked_for_a_few_of_its_other_repositories(
    alice_app: App, git_host: GitHost, work: Work
) -> None:
    for number in range(12):
        made = git_host.create(f"acme/number-{number}")
        made.commit({"a.md": "a"})
        watches.watch(alice_app, made.url)
    work()
    later = timezone.now() + timedelta(minutes=10)
    open_circuit = {"last_error_code": HostUnavailable.code, "circuit_open_until": later, "consecutive_failures": 5}
    Repository.objects.update(probe_at=later, **open_circuit)
    elsewhere = Repository.objects.order_by("pk").last()
    assert elsewhere
    Repository.objects.filter(pk=elsewhere.pk).update(url="https://github.com/acme/other")
    first = Repository.objects.order_by("pk")[0]
    circuit.count_success(first)
    assert Repository.objects.filter(probe_at__lte=timezone.now()).count() == 5
    work()
    assert list(Repository.objects.exclude(circuit_open_until=None)) == [elsewhere]


def test_one_notice_however_long_the_outage_and_everything_syncs_again_by_itself(
    alice_app: App, alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"news.md": "news"})
    with git_host.faults.put(GitFault(status=503)):
        for _ in range(5):
            look()
        for _ in range(20):
            end_of_cooldown()
            look()
        work()
    assert notices(alice) == ["sync_failed"]
    end_of_cooldown()
    watches.request_snapshot(watch.repository)
    work()
    watch.refresh_from_db()
    assert (watch.status, watch.last_error) == (WatchStatus.SYNCED, "")
    assert alice.files[watch.repository.public_id] == remote.files()
    assert Repository.objects.get().consecutive_failures == 0


def test_failures_of_both_phases_count_on_one_account(
    alice_app: App, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    watches.watch(alice_app, remote.url)
    work()
    remote.commit({"news.md": "news"})
    with git_host.faults.put(GitFault(kinds={"fetch"}, status=503)):
        look()
    with git_host.faults.put(GitFault(kinds={"advertise"}, status=503)):
        look()
    assert Repository.objects.get().consecutive_failures == 2
    look()
    assert Repository.objects.get().consecutive_failures == 0
    assert Snapshot.objects.count() == 2


def in_processes(count: int, function: Callable[[], bool]) -> int:
    """Run a function in so many forked processes at once; returns how many answered yes."""
    connections.close_all()
    start, go = os.pipe()
    children: list[int] = []
    for _ in range(count):
        if child := os.fork():
            children.append(child)
            continue
        try:
            os.close(go)
            os.read(start, 1)  # until the parent lets go
            os._exit(7 if function() else 0)
        finally:
            os._exit(1)
    os.close(start)
    os.close(go)
    answers = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert set(answers) <= {0, 7}
    return answers.count(7)


@pytest.fixture
def repository(alice_app: App, remote: HostedRepository) -> Repository:
    return watches.watch(alice_app, remote.url).repository


@pytest.mark.parametrize("due", ["circuit_open_until", "probe_at"])
def test_of_two_that_find_the_same_probe_due_one_probes(repository: Repository, due: str) -> None:
    now = timezone.now()
    times = {"circuit_open_until": now + timedelta(hours=1), "probe_at": now + timedelta(hours=1)}
    Repository.objects.update(**times | {due: now - timedelta(seconds=1)})
    workers = [Repository.objects.get(), Repository.objects.get()]
    assert [circuit.claim_look(worker) is not None for worker in workers] == [True, False]
    assert not circuit.claim_look(Repository.objects.get()), "before the next probe is due"


@pytest.mark.parametrize("due", ["circuit_open_until", "probe_at"])
def test_a_probe_that_could_not_look_is_left_to_the_next_caller(
    repository: Repository, due: str, settings: Settings
) -> None:
    """The clone was busy: that is no answer of the host."""
    now = timezone.now()
    times = {"circuit_open_until": now + timedelta(hours=1), "probe_at": now + timedelta(hours=1)}
    Repository.objects.update(**times | {due: now - timedelta(seconds=1)})
    settings.REPO_LOCK_WAIT = 0
    with repo_lock(repository.clone_key, job_id="another"), pytest.raises(LockTimeoutError):
        take_snapshot(repository.pk, job_id="probe")
    assert circuit.claim_look(Repository.objects.get())


def test_a_probe_that_somebody_else_has_claimed_since_is_not_given_back(repository: Repository) -> None:
    Repository.objects.update(circuit_open_until=timezone.now() - timedelta(seconds=1))
    claim = circuit.claim_look(Repository.objects.get())
    assert claim
    later = timezone.now() + timedelta(hours=9)
    Repository.objects.update(circuit_open_until=later)
    claim.give_back()
    assert Repository.objects.get().circuit_open_until == later


def test_failures_that_two_workers_count_at_once_are_two(repository: Repository) -> None:
    workers = [Repository.objects.get(), Repository.objects.get()]
    for worker in workers:
        circuit.count_failure(worker, HostUnavailable("down"))
    assert Repository.objects.get().consecutive_failures == 2


@pytest.mark.slow
def test_of_many_processes_one_opens_it_and_one_probes(
    alice_app: App, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    watches.watch(alice_app, remote.url)
    repository = Repository.objects.get()
    opened: list[bool] = []
    monkeypatch.setattr("repositories.messages.announce_failure", lambda *_: opened.append(True))

    def fail() -> bool:
        for _ in range(5):
            circuit.count_failure(repository, HostUnavailable("down"))
        return bool(opened)

    assert in_processes(8, fail) == 1
    assert Repository.objects.get().consecutive_failures == 40
    end_of_cooldown()
    waiting = Repository.objects.get()
    assert in_processes(8, lambda: circuit.claim_look(waiting) is not None) == 1


def test_a_new_watch_of_what_can_be_seen_again_is_the_probe(
    alice_app: App, bob_app: App, bob: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    watches.watch(alice_app, remote.url)
    work()
    with git_host.faults.put(GitFault(status=503)):
        for _ in range(5):
            look()
    watch = watches.watch(bob_app, remote.url)
    work()
    assert bob.files[watch.repository.public_id] == remote.files()
    assert Repository.objects.get().circuit_open_until is None


def test_a_new_watch_does_not_fetch_what_is_too_large_once_more(
    alice_app: App, bob_app: App, git_host: GitHost, remote: HostedRepository, work: Work, settings: Settings
) -> None:
    settings.MAX_REPOSITORY_FILES = 1
    watches.watch(alice_app, remote.url)
    work()
    assert Repository.objects.get().last_error_code == "too-large"
    fetches = git_host.count(remote, "fetch")
    watches.watch(bob_app, remote.url)
    work()
    assert git_host.count(remote, "fetch") == fetches


@pytest.mark.parametrize("by", [watches.ask_for_snapshot, retry, lambda row: call_command("snapshot", row.public_id)])
def test_who_asks_for_a_look_does_not_wait_for_the_end_of_the_cooldown(
    alice_app: App,
    git_host: GitHost,
    remote: HostedRepository,
    work: Work,
    settings: Settings,
    by: Callable[[Any], object],
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    with git_host.faults.put(GitFault(status=503)):
        for _ in range(settings.CIRCUIT_BREAKER_THRESHOLD):
            look()
    assert Repository.objects.get().circuit_open_until
    by(watch if by is retry else watch.repository)
    work()
    assert Repository.objects.get().circuit_open_until is None
