"""POST /hooks/{id}: which pushes ask for a look, and how apps and operators make their hooks."""

import json
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import connection as database
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from docora.api.hooks.receive import receive
from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories import hooks, messages, watches
from repositories.models import App, Hook, Repository, Watch
from tests.support.api import Api
from tests.support.database_work import counted
from tests.support.git_hooks import ZERO, Sender, Sent, github, gitlab, sign
from tests.support.hook_cast import MadeHook, waiting
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_pauses")]


def test_a_push_is_delivered(
    made: MadeHook, send: Sender, remote: HostedRepository, work: Work, alice: Receiver
) -> None:
    remote.commit({"README.md": "# Handbook, changed\n"})
    assert send(made.secret, "acme/handbook").to(made.url).status_code == 202
    work()
    assert alice.files_of(made.watch.repository.public_id) == remote.files()
    assert (made.log.accepted, made.log.ignored, made.log.refused) == (1, 0, 0)


def test_what_no_watch_wants_is_answered_with_204_and_nothing_happens(made: MadeHook, send: Sender) -> None:
    for facts in (
        {"ref": "refs/heads/other"},
        {"ref": "refs/tags/v1"},
        {"after": ZERO},
    ):
        assert send(made.secret, "acme/handbook", **facts).to(made.url).status_code == 204
    assert waiting() == []
    assert made.log.ignored == 3


def test_other_events_do_nothing(made: MadeHook) -> None:
    assert github(made.secret, "acme/handbook", event="ping").to(made.url).status_code == 204
    assert github(made.secret, "acme/handbook", event="issues").to(made.url).status_code == 204
    assert gitlab(made.secret, "acme/handbook", event="issue").to(made.url).status_code == 204
    assert waiting() == []


def test_a_new_default_branch_is_looked_at(made: MadeHook) -> None:
    assert github(made.secret, "a/b", "refs/heads/next", default_branch="next").to(made.url).status_code == 202


def test_a_watched_branch_and_a_watched_tag_are_looked_at(
    made: MadeHook, alice_app: App, remote: HostedRepository, work: Work
) -> None:
    for ref in ("next", "v1"):
        Repository.objects.update(ref=ref)
        assert github(made.secret, "a/b", "refs/heads/main").to(made.url).status_code == 204
    assert github(made.secret, "a/b", "refs/tags/v1").to(made.url).status_code == 202
    Repository.objects.update(ref="next")
    assert github(made.secret, "a/b", "refs/heads/next").to(made.url).status_code == 202


def test_hooks_that_come_together_are_one_look(made: MadeHook) -> None:
    for _ in range(20):
        assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert waiting() == [f"hint-{made.watch.repository_id}"]


def test_the_look_is_asked_for_once_the_host_has_its_answer(made: MadeHook) -> None:
    sent = github(made.secret, "acme/handbook")
    request = RequestFactory().generic(
        "POST", made.url, sent.body, content_type=sent.headers["Content-Type"], headers=dict(sent.headers)
    )
    answer = receive(request, made.hook.public_id)
    assert (answer.status_code, waiting()) == (202, [])
    answer.close()
    assert waiting() == [f"hint-{made.watch.repository_id}"]


def test_a_look_that_could_not_be_asked_for_is_asked_for_by_the_next_hook(
    made: MadeHook, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_repository_id: int) -> None:
        raise redis.ConnectionError("gone")

    with monkeypatch.context() as patched:
        patched.setattr(messages, "look_now", fail)
        assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert "left to the next hook or planned look: gone" in caplog.text
    assert waiting() == []
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert waiting() == [f"hint-{made.watch.repository_id}"]


def test_a_hook_needs_no_session_and_no_row(made: MadeHook) -> None:
    with CaptureQueriesContext(database) as statements:
        assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert [statement["sql"].split()[0] for statement in statements] == ["SELECT"]


@pytest.mark.parametrize("payload", [
    {"ref": 1}, {"ref": None, "repository": []}, {"push": 1}, {"push": {"changes": [1, {"new": {"type": []}}]}},
    {"after": 0}, {"project": {"default_branch": {}}}, {"event_name": []}, {"event_name": {}, "ref": "refs/heads/main"},
])  # fmt: skip
def test_a_payload_of_other_types_is_no_push(made: MadeHook, payload: dict[str, Any]) -> None:
    body = json.dumps(payload).encode()
    proof = {"X-Hub-Signature-256": f"sha256={sign(made.secret, body)}", "X-GitHub-Event": "push"}
    assert Sent(body, proof | {"Content-Type": "application/json"}).to(made.url).status_code == 204


# The operator's hook for a whole host.


@pytest.fixture
def of_host(watch: Watch) -> tuple[str, str]:
    hook, secret = hooks.open_for_host(watch.repository.remote.address)
    return f"/hooks/{hook.public_id}", secret


def test_the_hook_of_a_host_is_for_every_watched_ref_of_the_pushed_repository(
    of_host: tuple[str, str], watch: Watch, bob_app: App, remote: HostedRepository, work: Work, send: Sender
) -> None:
    url, secret = of_host
    remote.point("next", remote.tip() or "")
    other = watches.watch(bob_app, remote.url, ref="next")
    work()
    assert send(secret, "Acme/HandBook").to(url).status_code == 202
    assert waiting() == [f"hint-{watch.repository_id}"]
    assert send(secret, "acme/handbook", "refs/heads/next").to(url).status_code == 202
    assert waiting() == [f"hint-{watch.repository_id}", f"hint-{other.repository_id}"]


@pytest.mark.any_database
def test_the_hook_of_a_host_does_not_read_all_repositories(watch: Watch) -> None:
    names = [f"acme/handbook-{number}" for number in range(5000)]
    Repository.objects.bulk_create(Repository(url=name, clone_key=name) for name in names)
    with counted() as work:
        [found] = hooks._of_host(watch.repository.remote.address, "Acme/Handbook")
    assert found.pk == watch.repository_id
    assert work.most < (5000, "")


def test_the_hook_of_a_host_is_not_for_others(of_host: tuple[str, str], watch: Watch, settings: Settings) -> None:
    url, secret = of_host
    for path in ("acme/else", "../acme/handbook", "", "acme/handbook/..", "@evil/handbook"):
        assert github(secret, path).to(url).status_code == 204
    settings.GIT_HOSTS = (*settings.GIT_HOSTS, "github.com")
    elsewhere, other_secret = hooks.open_for_host("github.com")
    assert github(other_secret, "acme/handbook").to(f"/hooks/{elsewhere.public_id}").status_code == 204


def test_the_command_makes_a_hook_for_a_host_of_the_list(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("host_hook", watch.repository.remote.address, "--json")
    made = json.loads(capsys.readouterr().out)
    assert github(made["secret"], "acme/handbook").to(made["path"]).status_code == 202
    with pytest.raises(CommandError, match="DOCORA_GIT_HOSTS does not allow elsewhere"):
        call_command("host_hook", "elsewhere.example.com")


# How apps make their hooks.


def test_an_app_makes_changes_sees_and_ends_its_hook(
    alice_api: Api, bob_api: Api, remote: HostedRepository, work: Work
) -> None:
    repository = alice_api.watch(remote.url).json()["repository_id"]
    work()
    path = f"/api/repositories/{repository}/hook"
    assert alice_api.get(path).json()["code"] == "no-hook"
    first = alice_api.call("POST", path)
    assert first.status_code == 201
    first = first.json()
    assert first["url"].startswith("http://testserver/hooks/hook_")
    assert {each["host"] for each in first["hosts"]} == {"GitHub", "GitLab", "Gitea", "Forgejo", "Bitbucket"}
    assert all(first["secret"] in each["fields"].values() for each in first["hosts"])
    second = alice_api.call("POST", path.replace("/api/", "/api/v1/")).json()
    assert second["url"] == first["url"]
    assert second["secret"] != first["secret"]
    for secret in (first["secret"], second["secret"]):
        assert github(secret, "acme/handbook").to(first["url"]).status_code == 202
    assert github("wrong", "acme/handbook").to(first["url"]).status_code == 401
    state = alice_api.get(path).json()
    assert (state["accepted"], state["ignored"], state["refused"]) == (2, 0, 1)
    assert state["last_delivery"]["event"] == "push"
    assert state["last_delivery"]["id"] == "f6266f16-1bf3-46a5-9ea4-602e06ead473"
    assert state["last_error"]["message"]
    assert not any(secret in str(state) for secret in (first["secret"], second["secret"]))
    for other in (bob_api.get(path), bob_api.call("POST", path), bob_api.call("DELETE", path)):
        assert other.status_code == 404
    assert alice_api.call("DELETE", path).status_code == 204
    assert github(second["secret"], "acme/handbook").to(first["url"]).status_code == 401
    assert alice_api.call("DELETE", path).status_code == 404


def test_the_hook_stays_when_the_watch_is_renewed_and_goes_with_it(
    alice_app: App, made: MadeHook, remote: HostedRepository
) -> None:
    watches.watch(alice_app, remote.url)
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    watches.unwatch(alice_app, Repository.objects.get().public_id)
    assert not Hook.objects.exists()
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 401


def test_the_secret_is_not_in_the_database_in_clear(made: MadeHook) -> None:
    with database.cursor() as cursor:
        cursor.execute("SELECT secret, previous_secret FROM repositories_hook")
        assert made.secret not in str(cursor.fetchall())
