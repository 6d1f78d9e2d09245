"""Looks without a process: what they write, what they leave to git, and what no host can do to the others."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from git import Git
from pytest_django import Settings
from rq import Queue
from rq.serializers import JSONSerializer

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import timing, watches
from repositories.base import queue
from repositories.errors import AccessDenied
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.watch_state import refuse
from snapshots import looks, schedule
from snapshots.looks import Looks
from snapshots.models import Snapshot
from tests.support.hostile_host import END, HostileHost, Question, host, packet
from tests.support.hostile_host import Answer as Sent
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)

LONG_AGO = timezone.now() - timedelta(hours=1)
TIP = "1" * 40


@pytest.fixture(autouse=True)
def reconciled() -> None:
    queue.connection().set("docora:last-reconciled", "now")


@pytest.fixture
def watch(watch: Watch) -> Watch:
    """In sync, proven long ago."""
    Watch.objects.update(access_proven_at=LONG_AGO)
    make_due()
    return Watch.objects.select_related("repository").get(pk=watch.pk)


@pytest.fixture
def no_git(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every start of a git by Docora; the host of the tests starts its own without GitPython."""
    started: list[Any] = []
    monkeypatch.setattr(Git, "execute", lambda _, command, *__, **___: started.append(command))
    return started


def make_due() -> None:
    Repository.objects.update(next_check_at=LONG_AGO)


def waiting() -> list[str]:
    return Queue(queue.SNAPSHOTS, connection=queue.connection(), serializer=JSONSerializer).job_ids


def rows() -> dict[Any, dict[str, Any]]:
    found = [*Repository.objects.all(), *Watch.objects.all(), *App.objects.all(), *Snapshot.objects.all()]
    return {
        (type(row), row.pk): {field.attname: getattr(row, field.attname) for field in row._meta.fields} for row in found
    }


def changed_fields(before: dict[Any, dict[str, Any]]) -> set[tuple[str, str]]:
    after = rows()
    assert after.keys() == before.keys()
    return {(key[0].__name__, name) for key in before for name in before[key] if before[key][name] != after[key][name]}


def test_an_unchanged_look_starts_no_process_and_writes_times_and_a_proof(
    watch: Watch, remote: HostedRepository, git_host: GitHost, no_git: list[Any]
) -> None:
    before = rows()
    assert schedule.tick() == 0
    assert (no_git, waiting()) == ([], [])
    assert git_host.count(remote, "fetch") == 1
    assert changed_fields(before) == {
        ("Repository", "next_check_at"), ("Repository", "last_checked_at"), ("Watch", "access_proven_at")
    }  # fmt: skip
    repository = Repository.objects.get()
    assert repository.last_checked_at
    assert 54 <= (repository.next_check_at - repository.last_checked_at).total_seconds() <= 60


def test_a_proof_that_is_still_fresh_is_not_written(watch: Watch) -> None:
    Watch.objects.update(access_proven_at=timezone.now())
    before = rows()
    schedule.tick()
    assert changed_fields(before) == {("Repository", "next_check_at"), ("Repository", "last_checked_at")}


def test_a_changed_tip_becomes_a_job_and_is_delivered(
    watch: Watch, remote: HostedRepository, alice: Receiver, work: Work
) -> None:
    tip = remote.commit({"README.md": "# Changed\n"})
    assert schedule.tick() == 1
    assert waiting() == [f"snapshot-{watch.repository_id}"]
    work()
    watch.refresh_from_db()
    assert (watch.status, watch.synced_commit) == (WatchStatus.SYNCED, tip)
    assert alice.requests[-1].event == "update"


@pytest.mark.parametrize("status", [301, 401, 403, 404, 500])
def test_a_refusal_becomes_a_job_and_blames_nobody(
    watch: Watch, git_host: GitHost, no_git: list[Any], status: int
) -> None:
    before = rows()
    with git_host.faults.put(GitFault(status=status)):
        assert schedule.tick() == 1
    assert waiting() == [f"snapshot-{watch.repository_id}"]
    assert changed_fields(before) == {("Repository", "next_check_at")}
    assert no_git == []


@pytest.mark.parametrize(
    "state",
    [
        {"circuit_open_until": LONG_AGO},
        {"consecutive_failures": 1},
        {"last_error": "git failed"},
        {"needs_repair": True},
        {"commit_sha": ""},
        {"sequence": 2},
    ],
    ids=lambda state: next(iter(state)),
)
def test_a_repository_that_is_not_healthy_or_has_news_is_left_to_git(
    watch: Watch, remote: HostedRepository, git_host: GitHost, state: dict[str, Any]
) -> None:
    asked = git_host.count(remote, "ls-refs")
    Repository.objects.update(**state)
    assert schedule.tick() >= 1
    assert waiting() == [f"snapshot-{watch.repository_id}"]
    assert git_host.count(remote, "ls-refs") == asked


def test_a_host_that_cannot_be_asked_at_all_is_left_to_git(watch: Watch, settings: Settings, tmp_path: Path) -> None:
    """The file of the authorities is being replaced."""
    settings.GIT_CA_FILE = tmp_path / "not there.pem"
    assert schedule.tick() == 1
    assert waiting() == [f"snapshot-{watch.repository_id}"]


@pytest.mark.parametrize(
    "state",
    [{"access_denied_at": LONG_AGO}, {"status": WatchStatus.FAILED}, {"status": WatchStatus.PENDING}],
    ids=["refused", "failed", "pending"],
)
def test_a_repository_with_a_watch_that_needs_something_is_left_to_git(
    watch: Watch, bob_app: App, remote: HostedRepository, git_host: GitHost, work: Work, state: dict[str, Any]
) -> None:
    """What the look with git does for it is not lost: it settles the watch."""
    watches.watch(bob_app, remote.url)
    work()
    make_due()
    Watch.objects.filter(app=bob_app).update(**state)
    assert schedule.tick() == 1
    assert waiting() == [f"snapshot-{watch.repository_id}"]
    work()
    assert list(Watch.objects.values_list("status", "access_denied_at")) == [(WatchStatus.SYNCED, None)] * 2


def test_a_repository_that_nobody_watches_or_whose_host_is_not_allowed_is_left_to_git(
    watch: Watch, settings: Settings
) -> None:
    settings.GIT_HOSTS = ("github.com",)
    assert schedule.tick() == 1


def test_the_best_proven_token_is_used_and_only_its_watches_are_proven(
    alice_app: App, bob_app: App, git_host: GitHost, work: Work
) -> None:
    secret = git_host.create("acme/secret", private_to={"alice", "bob"})
    secret.commit({"a.md": "1"})
    for app, token in ((alice_app, "alice"), (bob_app, "bob")):
        watches.watch(app, secret.url, token=token)
    work()
    Watch.objects.filter(app=alice_app).update(access_proven_at=LONG_AGO - timedelta(hours=1))
    Watch.objects.filter(app=bob_app).update(access_proven_at=LONG_AGO)
    make_due()
    del git_host.requests[:]
    assert schedule.tick() == 0
    assert {request.token for request in git_host.requests} == {"bob"}
    assert Watch.objects.get(app=bob_app).access_proven_at != LONG_AGO
    assert Watch.objects.get(app=alice_app).access_proven_at == LONG_AGO - timedelta(hours=1)


def while_asked(action: Callable[[], object]) -> None:
    """One look, with something that happens between the claim and the writing of its answer."""
    with Looks() as looks:
        looks.claim()
        action()
        looks.work(30, until_answered=True)


def test_a_look_by_another_process_meanwhile_is_not_overwritten(watch: Watch) -> None:
    elsewhere = timezone.now() + timedelta(hours=7)
    while_asked(lambda: Repository.objects.update(next_check_at=elsewhere))
    repository = Repository.objects.get()
    assert (repository.next_check_at, repository.last_checked_at) == (elsewhere, watch.repository.last_checked_at)


def test_a_refusal_meanwhile_is_not_taken_back(watch: Watch) -> None:
    while_asked(lambda: refuse(watch, AccessDenied("refused")))
    watch.refresh_from_db()
    assert watch.access_denied_at
    assert watch.access_proven_at == LONG_AGO


def test_another_token_meanwhile_is_not_proven_by_the_old_one(watch: Watch) -> None:
    changed = timezone.now() - timedelta(minutes=30)
    while_asked(lambda: Watch.objects.update(token="new", access_proven_at=changed))
    watch.refresh_from_db()
    assert watch.access_proven_at == changed


def test_a_proof_is_as_old_as_the_question(
    many: list[Repository], hostile: HostileHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its answer comes while others are asked already."""
    monkeypatch.setattr(looks, "_WRITE_INTERVAL", 0.05)
    Repository.objects.exclude(pk=many[0].pk).update(next_check_at=timezone.now() + timedelta(hours=1))
    asked: list[datetime] = []
    well_behaved = hostile.answer

    def answer_slowly(question: Question) -> Sent:
        asked.append(timezone.now())
        time.sleep(0.2)
        return well_behaved(question)

    hostile.answer = answer_slowly
    assert schedule.tick() == 0
    proven = Watch.objects.get(repository=many[0]).access_proven_at
    assert proven
    assert LONG_AGO < proven <= asked[0]


class TestRest:
    @pytest.fixture
    def other(self, watch: Watch, alice_app: App, git_host: GitHost, work: Work) -> HostedRepository:
        """Of the same host, and with failures: it would be looked at with git."""
        other = git_host.create("acme/other")
        other.commit({"a.md": "1"})
        watches.watch(alice_app, other.url)
        work()
        Repository.objects.filter(name="other").update(consecutive_failures=1)
        make_due()
        return other

    def test_no_repository_of_the_host_is_asked_until_its_end(
        self, other: HostedRepository, git_host: GitHost, no_git: list[Any]
    ) -> None:
        Repository.objects.update(consecutive_failures=0)
        del git_host.requests[:]
        with git_host.faults.put(GitFault(status=429, retry_after=1000)):
            assert schedule.tick() == 0
        asked = len(git_host.requests)
        assert self.all_are_planned_later()
        make_due()
        Repository.objects.filter(name="other").update(consecutive_failures=1)
        assert schedule.tick() == 0
        assert self.all_are_planned_later()
        assert (len(git_host.requests), waiting(), no_git) == (asked, [], [])

    def test_those_in_line_are_not_asked_any_more(
        self, other: HostedRepository, git_host: GitHost, settings: Settings
    ) -> None:
        settings.LOOKS_PER_HOST = 1
        Repository.objects.update(consecutive_failures=0)
        del git_host.requests[:]
        with git_host.faults.put(GitFault(status=503, retry_after=1000)):
            assert schedule.tick() == 0
        assert len(git_host.requests) == 1
        assert self.all_are_planned_later()

    def test_its_end_is_noticed(self, watch: Watch) -> None:
        timing.rest_host(watch.repository.remote.base, 1000)
        schedule.tick()
        assert self.all_are_planned_later()
        queue.connection().delete(f"docora:resting-host:{watch.repository.remote.base}")
        make_due()
        schedule.tick()
        assert Repository.objects.filter(last_checked_at__gt=LONG_AGO).exists()

    @staticmethod
    def all_are_planned_later() -> bool:
        earliest = timezone.now() + timedelta(seconds=900)
        return not Repository.objects.filter(next_check_at__lt=earliest).exists()


@pytest.fixture
def many(hostile: HostileHost, alice_app: App) -> list[Repository]:
    """Repositories in sync at one host, and due."""
    hostile.answer = host(refs=[packet(f"{TIP} HEAD\n".encode()), END])
    return in_sync(hostile, alice_app, 8)


def in_sync(hosted: HostileHost, app: App, count: int) -> list[Repository]:
    made = Repository.objects.bulk_create(
        Repository(url=f"{hosted.url}-{n}", owner="acme", name=str(n), clone_key=f"{hosted.address}/{n}", sequence=1,
                   commit_sha=TIP, next_check_at=LONG_AGO + timedelta(seconds=n)) for n in range(count)
    )  # fmt: skip
    Watch.objects.bulk_create(
        Watch(app=app, repository=each, status=WatchStatus.SYNCED, synced_sequence=1, access_proven_at=LONG_AGO)
        for each in made
    )
    return made


def test_all_answers_are_written_in_one_transaction(many: list[Repository], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looks, "_WRITE_INTERVAL", 60)

    def queries_of_looks_at(count: int) -> list[str]:
        Repository.objects.update(next_check_at=timezone.now() + timedelta(hours=1))
        Repository.objects.filter(pk__in=[each.pk for each in many[:count]]).update(next_check_at=LONG_AGO)
        Watch.objects.update(access_proven_at=LONG_AGO)
        with CaptureQueriesContext(connection) as captured:
            schedule.tick()
        assert Watch.objects.exclude(access_proven_at=LONG_AGO).count() == count
        return [query["sql"].split()[0] for query in captured.captured_queries]

    queries = queries_of_looks_at(8)
    assert queries == queries_of_looks_at(1)
    last_transaction = queries[len(queries) - queries[::-1].index("BEGIN") :]
    assert last_transaction == ["SELECT", "UPDATE", "SELECT", "UPDATE", "COMMIT"]


def test_looks_are_planned_apart(many: list[Repository]) -> None:
    schedule.tick()
    assert Repository.objects.filter(next_check_at__gt=timezone.now()).values("next_check_at").distinct().count() == 8


def test_so_many_are_asked_at_once_and_no_more(
    many: list[Repository], hostile: HostileHost, settings: Settings
) -> None:
    settings.LOOKS_PER_HOST = 2
    both = threading.Barrier(2, timeout=30)
    inside: list[Question] = []
    most: list[int] = []
    well_behaved = hostile.answer

    def answer(question: Question) -> Sent:
        inside.append(question)
        most.append(len(inside))
        both.wait()
        inside.remove(question)
        return well_behaved(question)

    hostile.answer = answer
    assert schedule.tick() == 0
    assert max(most) == 2


@pytest.fixture
def hanging(git_host: GitHost, tmp_path: Path, settings: Settings) -> Iterator[GitHost]:
    with GitHost(tmp_path / "hanging") as host:
        settings.GIT_HOSTS = (git_host.address, host.address)
        yield host


def test_a_host_that_hangs_holds_up_no_other_and_its_looks_are_due_again_at_the_end(
    watch: Watch, hanging: GitHost, alice_app: App, work: Work, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    """Also if more of its looks are due, and for longer, than may stand in line."""
    monkeypatch.setattr(looks, "_BATCH", 2)
    monkeypatch.setattr(looks, "_LONGEST_LINE", 2)
    settings.LOOKS_PER_HOST = 1
    settings.GIT_ASK_TIMEOUT = 3600
    for number in range(6):
        stuck = hanging.create(f"acme/stuck-{number}")
        stuck.commit({"a.md": "1"})
        watches.watch(alice_app, stuck.url)
    work()
    make_due()
    healthy = Repository.objects.filter(pk=watch.repository_id)
    healthy.update(next_check_at=LONG_AGO + timedelta(seconds=1), last_checked_at=None)
    with hanging.faults.put(GitFault(hang=True)), Looks() as asked:
        asked.claim()
        deadline = time.monotonic() + 60
        while not healthy.get().last_checked_at:
            assert time.monotonic() < deadline, "it waits for the host that hangs"
            asked.work(0.1)
        assert len(asked._in_hand) <= 4
        assert waiting() == []
    assert Repository.objects.filter(next_check_at__lte=timezone.now()).count() == 6


def test_a_claim_that_ended_in_line_is_dropped(
    many: list[Repository], hostile: HostileHost, settings: Settings
) -> None:
    settings.RESCAN_INTERVAL = 0
    with Looks() as asked:
        asked.claim()
        asked.work(30, until_answered=True)
    assert (hostile.questions, waiting()) == ([], [])


def test_two_schedulers_share_what_is_due(many: list[Repository]) -> None:
    """At the same moment, again and again."""
    start = threading.Barrier(2, timeout=30)
    now = timezone.now()
    claimed: list[list[int]] = [[], []]

    def claim(mine: list[int]) -> None:
        try:
            for _ in range(8):
                start.wait()
                mine += [each.pk for each in timing.claim_due_looks(now, 1)]
        finally:
            connections.close_all()

    schedulers = [threading.Thread(target=claim, args=(mine,)) for mine in claimed]
    for scheduler in schedulers:
        scheduler.start()
    for scheduler in schedulers:
        scheduler.join()
    assert sorted(claimed[0] + claimed[1]) == [each.pk for each in many]
