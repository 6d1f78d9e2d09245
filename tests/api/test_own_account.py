"""An app looks after its own account: its bearer token, and where its webhooks go."""

import json
from collections.abc import Callable
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from repositories import accounts, watches
from repositories.models import App, PreviousBearer, Watch, WatchStatus
from snapshots.delivery.run import _Window
from snapshots.models import Parked
from tests.support.api import Api
from tests.support.beside import beside
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)

ROTATE = "/api/v1/app/bearer-token/rotate"


@pytest.fixture
def old() -> str:
    """The bearer token that Alice's app has had from the beginning."""
    return accounts.onboard("Alice", "https://alice.example.com").bearer_token


def rotate(token: str, **body: Any) -> Any:
    return Api(token).call("POST", ROTATE, body).json()


def accepted(*tokens: str) -> list[bool]:
    return [Api(token).get("/api/v1/app").status_code == 200 for token in tokens]


def test_an_app_rotates_its_own_token_and_both_work_for_a_while(old: str) -> None:
    answer = Api(old).call("POST", ROTATE)
    assert answer.status_code == 200
    new, until = answer.json()["bearer_token"], answer.json()["previous_token_until"]
    assert accepted(old, new) == [True, True]
    assert Api(new).get("/api/v1/app").json()["previous_token_until"] == until
    PreviousBearer.objects.update(valid_until=timezone.now())
    assert accepted(old, new) == [False, True]


def test_rotating_again_ends_no_token_early_and_lets_none_live_longer(old: str) -> None:
    lost = rotate(old, overlap_seconds=3600)["bearer_token"]
    promised = PreviousBearer.objects.get().valid_until
    new = rotate(old, overlap_seconds=86_400)["bearer_token"]
    assert accepted(old, lost, new) == [True, True, True]
    assert PreviousBearer.objects.earliest("valid_until").valid_until == promised


def test_without_an_overlap_every_earlier_token_ends(old: str) -> None:
    second = rotate(old)["bearer_token"]
    answer = rotate(second, overlap_seconds=0)
    assert answer["previous_token_until"] is None
    assert accepted(old, second, answer["bearer_token"]) == [False, False, True]


def test_a_loop_of_rotations_locks_nobody_out(old: str) -> None:
    app = App.objects.get()
    newest = [accounts.rotate_bearer_token(app) for _ in range(8)][-1]
    assert rotate(old)["code"] == "too-many-tokens"
    with pytest.raises(CommandError, match="overlap of 0"):
        call_command("rotate_bearer", app.public_id)
    assert accepted(old, newest) == [True, True]
    PreviousBearer.objects.filter(pk=PreviousBearer.objects.earliest("pk").pk).update(valid_until=timezone.now())
    assert accepted(accounts.rotate_bearer_token(app)) == [True]


@pytest.mark.any_database
@pytest.mark.parametrize("overlap", [-1, 31 * 86_400, "long", True])
def test_an_overlap_that_cannot_be_is_422(old: str, overlap: Any) -> None:
    assert rotate(old, overlap_seconds=overlap)["code"] == "malformed"
    assert not PreviousBearer.objects.exists()


def test_the_command_has_the_same_overlap(old: str) -> None:
    app_id, out = App.objects.get().public_id, StringIO()
    call_command("rotate_bearer", app_id, "--json", stdout=out)
    made = json.loads(out.getvalue())
    assert accepted(old, made["bearer_token"]) == [True, True]
    assert made["previous_token_until"] > timezone.now().isoformat()
    call_command("rotate_bearer", app_id, "--overlap", "0", stdout=out)
    assert "work no more" in out.getvalue()
    assert accepted(old, made["bearer_token"]) == [False, False]
    for words in (("app_unknown",), (app_id, "--overlap", "721")):
        with pytest.raises(CommandError):
            call_command("rotate_bearer", *words)


def test_only_an_app_that_is_allowed_to_changes_its_base_url(alice_api: Api, bob: Receiver, git_host: GitHost) -> None:
    answer = alice_api.call("PATCH", "/api/v1/app", {"base_url": bob.url})
    assert (answer.status_code, answer.json()["code"]) == (403, "base-url-fixed")
    App.objects.update(may_change_base_url=True)
    answer = alice_api.call("PATCH", "/api/v1/app", {"base_url": f"{bob.url}/"})
    assert (answer.status_code, answer.json()["base_url"]) == (200, bob.url)


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("base_url", "code"),
    [
        ("http://127.0.0.1:9000", "forbidden-address"),
        ("https://169.254.169.254/latest", "forbidden-address"),
        ("https://localhost", "forbidden-address"),
        ("http://[::1]/", "forbidden-address"),
        ("http://1.1.1.1", "forbidden-address"),
        ("https://no-such-host.invalid", "invalid-base-url"),
        ("ftp://example.com", "invalid-base-url"),
        ("https://user:secret@example.com", "invalid-base-url"),
        ("https://", "invalid-base-url"),
    ],
)
def test_a_base_url_passes_the_address_guard(alice_api: Api, base_url: str, code: str) -> None:
    App.objects.update(may_change_base_url=True)
    before = App.objects.get().base_url
    answer = alice_api.call("PATCH", "/api/v1/app", {"base_url": base_url})
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert "TRUSTED" not in answer.content.decode()
    assert App.objects.get().base_url == before


def test_onboarding_may_allow_it() -> None:
    call_command("onboard", "Alice", "https://alice.example.com", "--may-change-base-url", "--json", stdout=StringIO())
    assert App.objects.get().may_change_base_url


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_delivery_under_way_goes_on_at_the_new_base_url(
    alice_app: App, alice: Receiver, bob: Receiver, git_host: GitHost, work: Work, lanes: int
) -> None:
    """Each file is sent once, to the old endpoint or to the new one."""
    App.objects.update(max_in_flight=lanes)
    bob.webhook_keys, bob.app_id = alice.webhook_keys, alice.app_id
    # More than may be under way when the base URL changes.
    files = 8 + _Window(lanes).size + 8
    many = git_host.create("acme/many")
    many.commit({f"file-{number:03}.md": f"{number}\n" for number in range(files)})
    watches.watch(App.objects.get(), many.url)
    alice.on_request = once(lambda: accounts.change_base_url(alice_app, bob.url), path="file-007.md")
    work()
    first, second = ([request.path for request in receiver.requests] for receiver in (alice, bob))
    assert (len(first) + len(second), len({*first, *second})) == (files, files)
    assert second
    assert alice.problems == bob.problems == []
    assert (Watch.objects.get().status, Watch.objects.get().files) == (WatchStatus.SYNCED, files)


@pytest.mark.parametrize("lanes", [1, 8])
def test_what_the_old_base_url_refuses_while_it_is_changed_goes_to_the_new_one(
    alice_app: App, alice: Receiver, bob: Receiver, git_host: GitHost, work: Work, lanes: int
) -> None:
    App.objects.update(max_in_flight=lanes)
    bob.webhook_keys, bob.app_id = alice.webhook_keys, alice.app_id
    many = git_host.create("acme/many")
    many.commit({f"file-{number:03}.md": f"{number}\n" for number in range(16)})
    watches.watch(App.objects.get(), many.url)
    alice.on_request = once(lambda: accounts.change_base_url(alice_app, bob.url), path="file-007.md")
    with alice.faults.put(ReceiverFault(path="file-007.md", status=422)):
        work()
    assert not Parked.objects.exists()
    assert "file-007.md" in [request.path for request in bob.requests]
    assert (Watch.objects.get().status, Watch.objects.get().files) == (WatchStatus.SYNCED, 16)


def once(act: Callable[[], object], *, path: str) -> Callable[[ReceivedRequest], None]:
    done: list[str] = []

    def on_request(request: ReceivedRequest) -> None:
        if request.path == path and not done:
            done.append(path)
            beside(act)

    return on_request


def test_what_the_old_endpoint_did_does_not_hold_up_the_new_one(
    watch: Watch, alice: Receiver, bob: Receiver, remote: HostedRepository, work: Work
) -> None:
    bob.webhook_keys, bob.app_id = alice.webhook_keys, alice.app_id
    bob.mirror.repeats_are_allowed = True
    remote.commit({"README.md": "# Another\n"})
    watches.request_snapshot(watch.repository)
    with alice.faults.put(ReceiverFault(status=503, headers={"Retry-After": "3600"})):
        work()
    App.objects.update(slow_since=timezone.now() - timedelta(days=1))
    accounts.change_base_url(App.objects.get(), bob.url)
    work()
    assert [(request.event, request.path) for request in bob.requests] == [("update", "README.md")]
    assert Watch.objects.get().status == WatchStatus.SYNCED


def test_a_disabled_app_that_moves_stays_disabled(watch: Watch, bob: Receiver, work: Work) -> None:
    app = App.objects.get()
    accounts.disable_app(app, "for a while")
    accounts.change_base_url(app, bob.url)
    work()
    assert (App.objects.get().base_url, bob.requests) == (bob.url, [])
    assert Watch.objects.get().status == WatchStatus.FAILED
