"""A run tells one commit, the one that its messages name, whatever is fetched while it is under way."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import access, watches
from repositories.git import blobs
from repositories.models import App, Repository, Watch
from snapshots import changes, manifest
from snapshots.look import take_snapshot
from tests.support.beside import beside
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)

Files = dict[str, dict[str, bytes]]


@pytest.fixture
def steps(git_host: GitHost) -> HostedRepository:
    repository = git_host.create("acme/steps")
    repository.commit({"a.md": "1", "b.md": "1", "c.md": "1", "e.md": "1"})
    return repository


@pytest.fixture
def commits(steps: HostedRepository) -> Files:
    """The files of each commit, by its name."""
    return {str(steps.tip()): steps.files()}


@pytest.fixture
def overtake(steps: HostedRepository, commits: Files) -> Callable[[], None]:
    """One more commit, and its snapshot, by another worker."""

    def overtake() -> None:
        steps.commit({"b.md": "3", "c.md": None, "d.md": "3", "e.md": "3"})
        commits[str(steps.tip())] = steps.files()
        beside(lambda: take_snapshot(Repository.objects.get().pk, job_id="beside"))

    return overtake


@pytest.mark.parametrize("in_sync", [False, True], ids=["first sync", "later"])
@pytest.mark.parametrize("when", ["before it compares", "between two files"])
def test_a_newer_snapshot_does_not_change_what_a_run_tells(
    alice_app: App,
    alice: Receiver,
    steps: HostedRepository,
    commits: Files,
    overtake: Callable[[], None],
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    in_sync: bool,
    when: str,
) -> None:
    App.objects.update(max_in_flight=1)
    monkeypatch.setattr(changes, "BATCH", 1)
    monkeypatch.setattr(blobs, "_AHEAD", 1)
    watch = watches.watch(alice_app, steps.url)
    if in_sync:
        work()
        steps.commit({"a.md": "2", "b.md": "2", "c.md": "2", "e.md": None})
        commits[str(steps.tip())] = steps.files()
        alice.requests.clear()
    told = str(steps.tip())
    take_snapshot(watch.repository_id, job_id="look")

    def overtake_once(*_: object) -> None:
        alice.on_request = lambda _: None
        monkeypatch.setattr(access, "prove", lambda _: None)
        overtake()

    if when == "before it compares":
        monkeypatch.setattr(access, "prove", overtake_once)
    else:
        alice.on_request = overtake_once
    work()
    first = [(request.event, request.path) for request in alice.requests if request.commit_sha == told]
    if in_sync:
        assert first == [("delete", "e.md"), ("update", "a.md"), ("update", "b.md"), ("update", "c.md")]
    else:
        assert first == [("create", path) for path in ("a.md", "b.md", "c.md", "e.md")]
    for request in (request for request in alice.requests if request.event != "delete"):
        assert request.section("file")["content"].encode() == commits[request.commit_sha][request.path]
    assert alice.files[watch.repository.public_id] == steps.files()
    assert alice.problems == []


def between_two_queries(act: Callable[[], None]) -> Any:
    """Acts once, after the first query that reads versions of files."""
    has_acted = False

    def execute(run: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        nonlocal has_acted
        result = run(sql, params, many, context)
        if not has_acted and sql.startswith("SELECT") and '"snapshots_fileversion"."blob"' in sql:
            has_acted = True
            act()
        return result

    return connection.execute_wrapper(execute)


@pytest.fixture
def behind(alice_app: App, steps: HostedRepository, work: Work) -> Watch:
    """Alice has the first commit. The second one is known, and she has not been told of it."""
    watch = watches.watch(alice_app, steps.url)
    work()
    steps.commit({"a.md": "2", "b.md": "2"})
    take_snapshot(watch.repository_id, job_id="look")
    watch.refresh_from_db()
    return watch


def test_a_snapshot_between_two_queries_of_a_comparison_hides_no_file(
    behind: Watch, overtake: Callable[[], None]
) -> None:
    with between_two_queries(overtake):
        found = list(changes.changes_for(behind, 2))
    assert [(change.event, change.path.text) for change in found] == [("update", "a.md"), ("update", "b.md")]
    assert Repository.objects.get().sequence == 3


def test_a_snapshot_between_two_queries_of_a_page_hides_no_file(behind: Watch, overtake: Callable[[], None]) -> None:
    with between_two_queries(overtake):
        page = manifest.page_of_contents(behind.repository_id, 2, after=0, limit=10)
    assert len(page) == 4
    assert Repository.objects.get().sequence == 3
