"""`apps`, `disable_app` and `enable_app`."""

import json
from io import StringIO

import pytest
from django.core import mail
from django.core.management import CommandError, call_command

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories import accounts, watches
from repositories.management.table import table
from repositories.models import App, Watch
from tests.support.worker import Work

pytestmark = pytest.mark.django_db


def run(*words: str) -> str:
    output = StringIO()
    call_command(*words, stdout=output)
    return output.getvalue()


def test_the_apps_are_listed_with_their_state_and_watches(
    alice_app: App, bob_app: App, remote: HostedRepository
) -> None:
    watches.watch(alice_app, remote.url)
    Watch.objects.update(retry_count=99)
    accounts.disable_app(bob_app, "gone\x1b[2J")
    header, first, second = run("apps").splitlines()
    assert header.split()[:5] == ["app", "name", "state", "watches", "failing"]
    assert first.split()[:6] == [alice_app.public_id, "Alice's", "search", "enabled", "1", "1"]
    assert "disabled" in second
    assert second.endswith("gone�[2J"), "no control character reaches the terminal"


def test_the_apps_as_json(alice_app: App, bob_app: App) -> None:
    accounts.disable_app(bob_app, "gone")
    listed = {app["app_id"]: app for app in json.loads(run("apps", "--json"))}
    assert listed[alice_app.public_id]["state"] == "enabled"
    assert listed[bob_app.public_id]["state"] == "disabled"
    assert listed[bob_app.public_id]["reason"] == "gone"
    assert [app["app_id"] for app in json.loads(run("apps", "--json", "--disabled"))] == [bob_app.public_id]


def test_without_apps_it_says_how_to_add_one() -> None:
    assert "manage.py onboard" in run("apps")
    assert json.loads(run("apps", "--json")) == []


def test_a_disabled_app_gets_nothing_and_all_that_it_missed_once_it_is_enabled(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    app = watch.app
    App.objects.update(email="alice@example.com")
    assert f"manage.py enable_app {app.public_id}" in run("disable_app", app.public_id, "--reason", "A quiet weekend.")
    remote.commit({"README.md": "two"})
    watches.ask_for_snapshot(watch.repository)
    alice.requests.clear()
    work()
    assert alice.requests == []
    assert "A quiet weekend." in mail.outbox[0].body
    assert "disabled already: A quiet weekend." in run("disable_app", app.public_id)
    assert "is being delivered" in run("enable_app", app.public_id)
    work()
    assert len(alice.requests) == 1
    assert "enabled already" in run("enable_app", app.public_id)


@pytest.mark.parametrize("command", ["disable_app", "enable_app", "delete_app", "ping"])
def test_an_app_that_is_not_there(command: str) -> None:
    with pytest.raises(CommandError, match=r"There is no app app_x\. `manage\.py apps` lists them"):
        run(command, "app_x")


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("a", "b"), [("wide", "x"), ("y", "")]) == "a     b\nwide  x\ny"
