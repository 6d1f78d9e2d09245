"""The last unwatch deletes the clone; nothing else does."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pytest_django import Settings

from docora.demo.githost import HostedRepository
from repositories import watches
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.repo_lock import HeldLock, LockTimeoutError, repo_lock
from snapshots import look
from snapshots.models import Delivered
from tests.support.beside import beside
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_clone_that_is_watched_again_is_not_deleted(
    watch: Watch, alice_app: App, remote: HostedRepository, work: Work
) -> None:
    """The job that deletes it was queued before, and looks again under the lock."""
    key = watch.repository.clone_key
    watches.unwatch(alice_app, watch.repository.public_id)
    watches.watch(alice_app, remote.url)
    assert not watches.purge_clone(key, job_id="purge")
    assert clones.keys_on_disk() == [key]
    work()
    assert Watch.objects.get().status == WatchStatus.SYNCED


def test_a_clone_that_is_watched_again_while_its_deletion_waits_for_the_lock_is_not_deleted(
    watch: Watch, alice_app: App, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = watch.repository.clone_key
    watches.unwatch(alice_app, watch.repository.public_id)

    @contextmanager
    def lock_after_the_watch(key: str, *, job_id: str) -> Iterator[HeldLock]:
        beside(lambda: watches.watch(alice_app, remote.url))
        with repo_lock(key, job_id=job_id) as held:
            yield held

    monkeypatch.setattr(watches, "repo_lock", lock_after_the_watch)
    assert not watches.purge_clone(key, job_id="purge")
    assert clones.keys_on_disk() == [key]


def test_a_clone_in_use_is_not_deleted_under_the_one_who_uses_it(
    watch: Watch, alice_app: App, settings: Settings
) -> None:
    settings.REPO_LOCK_WAIT = 0
    key = watch.repository.clone_key
    watches.unwatch(alice_app, watch.repository.public_id)
    with repo_lock(key, job_id="a fetch"), pytest.raises(LockTimeoutError):
        watches.purge_clone(key, job_id="purge")
    assert clones.keys_on_disk() == [key]
    assert watches.purge_clone(key, job_id="purge")
    assert clones.keys_on_disk() == []


def test_an_unwatch_that_fails_on_the_way_takes_nothing_with_it(
    watch: Watch, alice_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Repository) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(watches, "_drop_if_unwatched", fail)
    with pytest.raises(ZeroDivisionError):
        watches.unwatch(alice_app, watch.repository.public_id)
    assert Watch.objects.get() == watch
    assert Delivered.objects.filter(watch=watch).count() == watch.files == 3


def test_another_apps_watch_keeps_repository_and_clone(
    watch: Watch, alice_app: App, bob_app: App, remote: HostedRepository, work: Work
) -> None:
    watches.watch(bob_app, remote.url)
    work()
    watches.unwatch(alice_app, watch.repository.public_id)
    work()
    assert Watch.objects.get().app == bob_app
    assert clones.keys_on_disk() == [watch.repository.clone_key]


def test_another_ref_of_the_same_url_keeps_the_clone(
    watch: Watch, alice_app: App, remote: HostedRepository, work: Work
) -> None:
    watches.watch(alice_app, remote.url, ref="main")
    work()
    watches.unwatch(alice_app, watch.repository.public_id)
    work()
    assert Repository.objects.get().ref == "main"
    assert clones.keys_on_disk() == [watch.repository.clone_key]


def test_a_repository_that_is_unwatched_before_the_fetch_gets_no_clone(
    alice_app: App, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the remote and the fetch a worker may wait long for the lock."""
    watch = watches.watch(alice_app, remote.url)

    @contextmanager
    def lock_after_the_unwatch(key: str, *, job_id: str, wait: float | None) -> Iterator[HeldLock]:
        beside(lambda: watches.unwatch(alice_app, watch.repository.public_id))
        with repo_lock(key, job_id=job_id, wait=wait) as held:
            yield held

    monkeypatch.setattr(look, "repo_lock", lock_after_the_unwatch)
    look.take_snapshot(watch.repository_id, job_id="snapshot")
    assert clones.keys_on_disk() == []
