"""Watch, snapshot, deliver, unwatch: the path through the whole, on a real git host and a real receiver."""

from collections.abc import Callable
from typing import Any

import pytest

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import watches
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from snapshots import look as snapshots
from snapshots.models import Delivered, Delivery, File, FileVersion, Snapshot
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def snapshot(repository: Repository, work: Work) -> None:
    watches.request_snapshot(repository)
    work()


def test_every_file_reaches_the_app_with_its_commit(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert watch.synced_commit == remote.tip()
    assert alice.files == {watch.repository.public_id: remote.files()}
    assert {request.commit_sha for request in alice.requests} == {remote.tip()}
    assert alice.problems == []


def test_only_what_changed_is_sent_and_in_order(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    alice.requests.clear()
    remote.commit({"README.md": "# Better\n", "new.md": "New.\n", "logo.png": None})
    snapshot(watch.repository, work)
    assert [(request.event, request.path) for request in alice.requests] == [
        ("delete", "logo.png"),
        ("create", "new.md"),
        ("update", "README.md"),
    ]
    assert alice.files[watch.repository.public_id] == remote.files()
    assert alice.problems == []


def test_an_unchanged_repository_costs_one_question_and_no_lock(
    alice_app: App, git_host: GitHost, remote: HostedRepository, work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    fetches, questions = git_host.count(remote, "fetch"), git_host.count(remote, "ls-refs")
    caplog.set_level("DEBUG", "docora.repo_lock")
    caplog.clear()
    snapshot(watch.repository, work)
    assert git_host.count(remote, "fetch") == fetches
    assert git_host.count(remote, "ls-refs") == questions + 1
    assert caplog.records == []
    assert Snapshot.objects.count() == 1


def test_two_apps_share_one_fetch(
    alice_app: App,
    bob_app: App,
    alice: Receiver,
    bob: Receiver,
    git_host: GitHost,
    remote: HostedRepository,
    work: Work,
) -> None:
    watches.watch(alice_app, remote.url)
    watches.watch(bob_app, f"{remote.url}.git/")
    work()
    assert git_host.count(remote, "fetch") == 1
    assert alice.files == bob.files == {Repository.objects.get().public_id: remote.files()}


def test_the_last_unwatch_takes_rows_and_clone_with_it(
    alice_app: App, bob_app: App, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    watches.watch(bob_app, remote.url)
    work()
    clone = clones.path_of(watch.repository.clone_key)
    watches.unwatch(alice_app, watch.repository.public_id)
    work()
    assert clone.is_dir()
    watches.unwatch(bob_app, watch.repository.public_id)
    work()
    assert not clone.exists()
    for model in (Repository, Watch, Snapshot, File, FileVersion, Delivered, Delivery):
        assert not model._default_manager.exists()


def test_watching_again_before_the_purge_keeps_the_clone(alice_app: App, remote: HostedRepository, work: Work) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    watches.unwatch(alice_app, watch.repository.public_id)
    watches.watch(alice_app, remote.url)
    work()
    assert clones.path_of(watch.repository.clone_key).is_dir()
    assert Watch.objects.get().status == WatchStatus.SYNCED


def test_watching_again_delivers_everything_again(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    alice.requests.clear()
    alice.mirror.forget(watch.repository.public_id)
    watches.watch(alice_app, remote.url)
    work()
    assert alice.files == {watch.repository.public_id: remote.files()}
    assert alice.problems == []


def test_a_failed_run_goes_on_where_it_stopped(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    App.objects.update(max_in_flight=1)
    with alice.faults.put(ReceiverFault(path="docs/start.md", status=500)):
        watch = watches.watch(alice_app, remote.url)
        work()
    watch.refresh_from_db()
    assert (watch.status, watch.retry_count) == (WatchStatus.PENDING, 1)
    assert "500" in watch.last_error
    sent_before = [request.path for request in alice.requests]
    alice.requests.clear()
    work(also_later_ones=True)
    assert [request.path for request in alice.requests] == ["docs/start.md", "logo.png"]
    assert sent_before == ["README.md", "docs/start.md"]
    watch.refresh_from_db()
    assert (watch.status, watch.retry_count, watch.last_error) == (WatchStatus.SYNCED, 0, "")


def test_a_refused_file_is_parked_and_the_others_arrive(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(path="logo.png", status=413)):
        watch = watches.watch(alice_app, remote.url)
        work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert set(alice.files[watch.repository.public_id]) == {"README.md", "docs/start.md"}
    assert [parked.file.path for parked in watch.parked.select_related("file")] == ["logo.png"]
    remote.commit({"logo.png": b"\x89smaller"})
    snapshot(watch.repository, work)
    assert alice.files[watch.repository.public_id]["logo.png"] == b"\x89smaller"
    assert not watch.parked.exists()


def test_one_apps_bad_token_does_not_disturb_the_other(
    alice_app: App, bob_app: App, alice: Receiver, bob: Receiver, git_host: GitHost, work: Work
) -> None:
    private = git_host.create("acme/secret", private_to={"alice-token", "bob-token"})
    private.commit({"plan.md": "one"})
    alices = watches.watch(alice_app, private.url, token="alice-token")
    bobs = watches.watch(bob_app, private.url, token="bob-token")
    work()
    assert alice.files == bob.files == {alices.repository.public_id: {"plan.md": b"one"}}
    git_host.revoke(private, "bob-token")
    Watch.objects.update(access_proven_at=None)
    private.commit({"plan.md": "two"})
    snapshot(alices.repository, work)
    assert alice.files[alices.repository.public_id] == {"plan.md": b"two"}
    assert bob.files[alices.repository.public_id] == {"plan.md": b"one"}
    bobs.refresh_from_db()
    assert (bobs.status, bobs.last_error_code) == (WatchStatus.FAILED, "no-access")
    assert Repository.objects.get().consecutive_failures == 0


def test_an_empty_repository_is_synced_and_fills_later(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work
) -> None:
    empty = git_host.create("acme/empty")
    watch = watches.watch(alice_app, empty.url)
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    empty.commit({"first.md": "first"})
    snapshot(watch.repository, work)
    assert alice.files[watch.repository.public_id] == {"first.md": b"first"}


BeforeTheLock = Callable[[Callable[[], object]], None]


@pytest.fixture
def repository(alice_app: App, remote: HostedRepository, work: Work) -> Repository:
    """Alice has all of it."""
    watch = watches.watch(alice_app, remote.url)
    work()
    return watch.repository


@pytest.fixture
def before_the_lock(monkeypatch: pytest.MonkeyPatch) -> BeforeTheLock:
    """Let something happen once, between what a look sees and what it does under the lock."""

    def happen(act: Callable[[], object]) -> None:
        def act_and_take(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(snapshots, "repo_lock", repo_lock)
            act()
            return repo_lock(*args, **options)

        monkeypatch.setattr(snapshots, "repo_lock", act_and_take)

    return happen


def test_a_look_that_was_overtaken_does_not_go_back_to_an_older_commit(
    repository: Repository, alice: Receiver, remote: HostedRepository, work: Work, before_the_lock: BeforeTheLock
) -> None:

    def overtake() -> None:
        remote.commit({"README.md": "three"})
        snapshots.take_snapshot(repository.pk, job_id="the faster one")

    remote.commit({"README.md": "two"})
    before_the_lock(overtake)
    snapshots.take_snapshot(repository.pk, job_id="the slower one")
    work()
    repository.refresh_from_db()
    assert repository.commit_sha == remote.tip()
    assert alice.files[repository.public_id] == remote.files()
    assert Snapshot.objects.count() == 2


def test_a_commit_that_the_host_has_thrown_away_makes_way_for_what_took_its_place(
    repository: Repository, alice: Receiver, remote: HostedRepository, work: Work, before_the_lock: BeforeTheLock
) -> None:
    kept = remote.tip()

    def rewrite() -> None:
        remote.git("update-ref", "refs/heads/main", str(kept))
        remote.commit({"README.md": "rewritten"})
        remote.git("repack", "-adq")
        remote.git("prune", "--expire=now")

    remote.commit({"README.md": "two"})
    before_the_lock(rewrite)
    snapshots.take_snapshot(repository.pk, job_id="test")
    work()
    repository.refresh_from_db()
    assert (repository.commit_sha, repository.consecutive_failures) == (remote.tip(), 0)
    assert alice.files[repository.public_id] == remote.files()
