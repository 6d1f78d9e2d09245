"""Deleting an app: its watches and orphans go, everybody else's stay."""

import pytest
from django.core.management import CommandError, call_command
from rq import Queue
from rq.serializers import JSONSerializer

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import accounts, watches
from repositories.base import queue
from repositories.errors import AppGone, NotWatched
from repositories.git import clones
from repositories.models import App, Repository, Watch
from snapshots.models import Delivered, Delivery, File
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def shared(remote: HostedRepository, alice_app: App, bob_app: App) -> Repository:
    watches.watch(bob_app, remote.url)
    return watches.watch(alice_app, remote.url).repository


@pytest.fixture
def own(git_host: GitHost, alice_app: App) -> Repository:
    repository = git_host.create("alice/own")
    repository.commit({"a.md": "a"})
    return watches.watch(alice_app, repository.url).repository


def waiting_jobs() -> set[str]:
    names = (queue.SNAPSHOTS, queue.DELIVERIES)
    queues = [Queue(name, connection=queue.connection(), serializer=JSONSerializer) for name in names]
    return {job_id for each in queues for job_id in each.job_ids}


def test_the_impact_is_known_before(alice_app: App, shared: Repository, own: Repository, work: Work) -> None:
    work()
    assert accounts.impact_of_deleting(alice_app) == accounts.Impact(watches=2, orphans=("alice/own",), files=4)


def test_the_apps_own_clones_go_and_shared_ones_stay(
    alice_app: App, bob_app: App, bob: Receiver, shared: Repository, own: Repository, work: Work
) -> None:
    work()
    accounts.delete_app(alice_app)
    work()
    assert not clones.path_of(own.clone_key).exists()
    assert clones.path_of(shared.clone_key).is_dir()
    assert list(App.objects.all()) == [bob_app]
    assert list(Repository.objects.all()) == [shared]
    assert set(Delivered.objects.values_list("watch__app", flat=True)) == {bob_app.pk}
    assert set(Delivery.objects.values_list("watch__app", flat=True)) == {bob_app.pk}
    assert set(File.objects.values_list("repository", flat=True)) == {shared.pk}


def test_jobs_that_wait_for_it_are_dropped(alice_app: App, shared: Repository, own: Repository) -> None:
    accounts.delete_app(alice_app)
    assert waiting_jobs() == {f"snapshot-{shared.pk}", f"purge-{own.pk}"}


def test_an_app_that_is_deleted_while_it_watches_gets_no_watch(alice_app: App, remote: HostedRepository) -> None:
    late = App.objects.get(pk=alice_app.pk)
    accounts.delete_app(alice_app)
    with pytest.raises(AppGone):
        watches.watch(late, remote.url)
    assert not Repository.objects.exists()


def test_a_failure_on_the_way_deletes_nothing(
    alice_app: App, own: Repository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work()

    def fail(self: App) -> None:
        raise RuntimeError("the database went away")

    monkeypatch.setattr(App, "delete", fail)
    with pytest.raises(RuntimeError):
        accounts.delete_app(alice_app)
    work()
    assert Watch.objects.count() == 1
    assert clones.path_of(own.clone_key).is_dir()


def test_the_command_shows_what_goes_and_asks(
    alice_app: App, own: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call_command("delete_app", alice_app.public_id, "--dry-run")
    assert "alice/own" in capsys.readouterr().out
    monkeypatch.setattr("builtins.input", lambda _: "no")
    with pytest.raises(CommandError, match="Nothing was deleted"):
        call_command("delete_app", alice_app.public_id)
    monkeypatch.setattr("builtins.input", lambda _: "yes")
    call_command("delete_app", alice_app.public_id)
    assert not App.objects.exists()
    with pytest.raises(CommandError, match="no app"):
        call_command("delete_app", alice_app.public_id)


def test_an_unwatched_repository_cannot_be_unwatched_again(alice_app: App, own: Repository) -> None:
    watches.unwatch(alice_app, own.public_id)
    with pytest.raises(NotWatched):
        watches.unwatch(alice_app, own.public_id)
