"""`disable_app` and `enable_app`."""

from io import StringIO

import pytest
from django.core import mail
from django.core.management import CommandError, call_command

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories import watches
from repositories.management.table import table
from repositories.models import App, Watch
from tests.support.worker import Work

pytestmark = pytest.mark.django_db


def run(*words: str) -> str:
    output = StringIO()
    call_command(*words, stdout=output)
    return output.getvalue()


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
