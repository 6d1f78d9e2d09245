"""`manage.py apps` and `watches`: what the console says of each, in a terminal."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts, watches
from repositories.models import App, Watch
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def run(*words: str) -> str:
    output = StringIO()
    call_command(*words, stdout=output)
    return output.getvalue()


def listed(*words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(run("watches", "--json", *words))
    return rows


def test_a_synced_watch_shows_what_was_acknowledged(watch: Watch) -> None:
    watch.refresh_from_db()
    (facts,) = listed()
    assert (facts["state"], facts["acknowledged"], facts["files"], facts["parked"]) == ("synced", 3, 3, 0)
    assert facts["synced_commit"] == watch.synced_commit
    header, row = run("watches").splitlines()
    assert header.split() == ["app", "repository", "id", "repository", "state", "files", "commit", "reason"]
    assert row.split()[:7] == [
        watch.app.public_id, watch.repository.public_id, "acme/handbook", "synced", "3", "of", "3"
    ]  # fmt: skip


def test_refused_files_are_not_counted_as_delivered(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(status=422)):
        watches.watch(alice_app, remote.url)
        work()
    assert "0 of 3, 3 parked" in run("watches")


def test_lists_are_narrowed_to_an_app_a_repository_and_to_what_fails(
    watch: Watch, bob_app: App, remote: HostedRepository, work: Work
) -> None:
    watches.watch(bob_app, remote.url)
    work()
    accounts.disable_app(bob_app, "gone")
    assert len(listed("--repository", watch.repository.public_id)) == 2
    assert [row["app_id"] for row in listed("--app", watch.app.public_id)] == [watch.app.public_id]
    (failing,) = listed("--failing")
    assert (failing["app_id"], failing["state"], failing["error"]) == (bob_app.public_id, "disabled", "gone")
    with pytest.raises(CommandError, match="There is no repository repo_x"):
        run("watches", "--repository", "repo_x")
    with pytest.raises(CommandError, match="There is no app app_x"):
        run("watches", "--app", "app_x")


def test_a_watch_of_a_disabled_app_gives_the_reason_of_the_app(bob_app: App, remote: HostedRepository) -> None:
    accounts.disable_app(bob_app, "gone")
    watches.watch(bob_app, remote.url)
    (facts,) = listed()
    assert (facts["state"], facts["error_code"], facts["error"]) == ("disabled", "endpoint-disabled", "gone")
    assert run("watches").rstrip().endswith("gone")


def test_a_long_list_is_counted_in_batches(
    watch: Watch, bob_app: App, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("docora.management.commands.watches._BATCH", 1)
    watches.watch(bob_app, remote.url)
    work()
    assert [row["acknowledged"] for row in listed()] == [3, 3]


def test_the_apps_are_listed_with_their_state_and_watches(
    alice_app: App, bob_app: App, remote: HostedRepository
) -> None:
    watches.watch(alice_app, remote.url)
    Watch.objects.update(retry_count=99)
    accounts.disable_app(bob_app, "gone\x1b[2J")
    header, first, second = run("apps").splitlines()
    assert header.split()[:5] == ["app", "name", "state", "watches", "failing"]
    assert first.split()[:2] == [alice_app.public_id, "Alice's"]
    assert first.split()[-3:-1] == ["1", "1"]
    assert "disabled" in second
    assert second.endswith("gone�[2J"), "no control character reaches the terminal"


def test_the_apps_as_json(alice_app: App, bob_app: App) -> None:
    accounts.disable_app(bob_app, "gone")
    found = {app["app_id"]: app for app in json.loads(run("apps", "--json"))}
    assert found[alice_app.public_id]["state"] == "idle"
    assert found[bob_app.public_id]["state"] == "disabled"
    assert found[bob_app.public_id]["reason"] == "gone"
    assert [app["app_id"] for app in json.loads(run("apps", "--json", "--disabled"))] == [bob_app.public_id]


def test_without_apps_it_says_how_to_add_one() -> None:
    assert "manage.py onboard" in run("apps")
    assert json.loads(run("apps", "--json")) == []
