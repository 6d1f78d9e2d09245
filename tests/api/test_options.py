"""Ensuring a watch and changing what it chooses: only the difference is sent, whatever is under way."""

import hashlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connections

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from repositories import access, accounts, watches
from repositories.base import queue
from repositories.git.urls import RemoteUrl
from repositories.models import App, Watch, WatchStatus
from repositories.selection import Selection
from snapshots.delivery import redelivery
from snapshots.digests import Holdings, of_files
from snapshots.models import Parked
from tests.support.api import Api
from tests.support.beside import beside
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)

V1 = "/api/v1/repositories"


def sent(receiver: Receiver) -> list[tuple[str, str]]:
    """What came since the last call, in no order."""
    found = sorted((request.event, request.path) for request in receiver.requests)
    receiver.requests.clear()
    return found


def ensure(api: Api, url: str, **options: Any) -> Any:
    return api.call("PUT", V1, {"github_url": url, **options})


@pytest.fixture
def handbook(repository_id: str, alice: Receiver) -> str:
    """The path of Alice's watch; she has its three files."""
    assert len(sent(alice)) == 3
    return f"{V1}/{repository_id}"


def test_ensuring_begins_a_watch(alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work) -> None:
    made = ensure(alice_api, remote.url)
    assert (made.status_code, made["Location"]) == (201, f"{V1}/{made.json()['repository_id']}")
    work()
    assert len(sent(alice)) == 3


def test_ensuring_the_same_sends_nothing_and_asks_no_host(
    handbook: str, alice_api: Api, alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    asked = len(git_host.requests)
    answer = ensure(alice_api, remote.url + ".git", include=[], exclude=[], max_file_size=None, github_token="")
    assert (answer.status_code, answer.json()["status"]) == (200, "synced")
    assert "Location" not in answer
    assert sum(queue.length(name) for name in queue.ALL) == 0
    work()
    assert (sent(alice), len(git_host.requests)) == ([], asked)


def test_ensuring_other_options_sends_the_difference(
    handbook: str, alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    assert ensure(alice_api, remote.url, exclude=["docs/"]).status_code == 200
    work()
    assert sent(alice) == [("delete", "docs/start.md")]
    ensure(alice_api, remote.url, include=["docs/"])
    work()
    assert sent(alice) == [("create", "docs/start.md"), ("delete", "README.md"), ("delete", "logo.png")]
    ensure(alice_api, remote.url)
    work()
    assert sent(alice) == [("create", "README.md"), ("create", "logo.png")]
    assert alice.problems == []
    assert_it_knows_what_alice_has(alice)


def assert_it_knows_what_alice_has(alice: Receiver) -> None:
    watch = Watch.objects.get()
    held = alice.files_of(watch.repository.public_id)
    assert watch.status == WatchStatus.SYNCED
    held_by_alice = of_files((path.encode(), hashlib.sha256(content).digest()) for path, content in held.items())
    assert Holdings(watch.files, watch.digest) == held_by_alice


def test_the_order_of_globs_is_no_difference(
    handbook: str, alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    ensure(alice_api, remote.url, exclude=["*.png", "*.gif"])
    work()
    assert sent(alice) == [("delete", "logo.png")]
    assert ensure(alice_api, remote.url, exclude=["*.gif", "*.png"]).json()["status"] == "synced"
    assert Watch.objects.get().exclude == ["*.png", "*.gif"]


def test_each_branch_is_a_watch_of_its_own(
    handbook: str, alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"next.md": "next"}, branch="next")
    assert ensure(alice_api, remote.url, branch="next").status_code == 201
    assert ensure(alice_api, remote.url, branch="next").status_code == 200
    assert Watch.objects.count() == 2


def test_a_given_token_is_replaced_and_an_omitted_one_kept(alice_api: Api, git_host: GitHost, work: Work) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_old", "ghp_new"})
    private.commit({"a": "b"})
    assert ensure(alice_api, private.url, github_token="ghp_old").status_code == 201
    work()
    for token in (None, "", "ghp_old"):
        assert ensure(alice_api, private.url, github_token=token).json()["status"] == "synced"
        assert Watch.objects.get().token == "ghp_old"
    refused = ensure(alice_api, private.url, github_token="ghp_wrong", exclude=["a"])
    assert (refused.status_code, refused.json()["code"]) == (422, "token-refused")
    assert (Watch.objects.get().token, Watch.objects.get().exclude) == ("ghp_old", [])
    assert ensure(alice_api, private.url, github_token="ghp_new").status_code == 200
    assert Watch.objects.get().token == "ghp_new"


def test_a_refused_token_that_is_given_again_is_tried_again(alice_api: Api, git_host: GitHost, work: Work) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    ensure(alice_api, private.url, github_token="ghp_alice")
    work()
    private.private_to = frozenset({"ghp_other"})
    watches.request_snapshot(Watch.objects.get().repository)
    work()
    assert ensure(alice_api, private.url, github_token="ghp_alice").status_code == 422
    private.private_to = frozenset({"ghp_alice"})
    assert ensure(alice_api, private.url, github_token="ghp_alice").json()["status"] != "failed"
    assert Watch.objects.get().access_denied_at is None


def test_two_that_ensure_at_once_begin_one_watch(
    alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    both_have_looked = threading.Barrier(2, timeout=20)
    found: list[int] = []

    def ask() -> None:
        try:
            found.append(ensure(alice_api, remote.url).status_code)
        finally:
            connections.close_all()

    with pytest.MonkeyPatch.context() as patch:
        # Both have found no watch, and have asked the host, before one of them writes.
        patch.setattr(access, "look", lambda *_: both_have_looked.wait())
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    work()
    assert sorted(found) == [200, 201]
    assert len(sent(alice)) == 3
    assert alice.problems == []


def test_ensuring_begins_anew_what_was_unwatched_meanwhile(
    handbook: str, alice_api: Api, alice: Receiver, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watches._find(App.objects.get(), RemoteUrl.parse(remote.url), "")
    alice_api.call("DELETE", handbook)
    monkeypatch.setattr(watches, "_find", lambda *_: found)
    assert ensure(alice_api, remote.url, exclude=["*.png"]).status_code == 201


def test_a_new_watch_counts_against_the_limits(alice_api: Api, remote: HostedRepository, settings: Any) -> None:
    settings.MAX_WATCHES_PER_APP = 1
    assert ensure(alice_api, remote.url).status_code == 201
    assert ensure(alice_api, remote.url, exclude=["*.png"]).status_code == 200
    assert ensure(alice_api, remote.url, branch="main").status_code == 409


def test_changed_options_send_deletes_and_creates_only(
    handbook: str, alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    answer = alice_api.call("PATCH", handbook, {"exclude": ["*.png"]})
    assert (answer.status_code, answer.json()["exclude"], answer.json()["include"]) == (200, ["*.png"], [])
    assert answer.json()["status"] == "pending_snapshot"
    work()
    assert sent(alice) == [("delete", "logo.png")]
    state = alice_api.get(handbook).json()
    assert (state["status"], state["acknowledged"], state["parked"]) == ("synced", 2, 0)
    alice_api.call("PATCH", handbook, {"include": ["*.md", "*.png"]})
    work()
    assert sent(alice) == []
    alice_api.call("PATCH", handbook, {"exclude": None})
    work()
    assert sent(alice) == [("create", "logo.png")]
    assert alice.problems == []
    assert_it_knows_what_alice_has(alice)


def test_what_is_not_given_stays_and_nothing_new_changes_nothing(
    handbook: str, alice_api: Api, alice: Receiver, work: Work
) -> None:
    alice_api.call("PATCH", handbook, {"exclude": ["*.png"], "max_file_size": 1000})
    work()
    for body in ({}, {"exclude": ["*.png"]}, {"max_file_size": 1000}):
        assert alice_api.call("PATCH", handbook, body).json()["status"] == "synced"
    assert alice_api.call("PATCH", handbook, {"max_file_size": None}).json()["exclude"] == ["*.png"]
    assert Watch.objects.get().max_file_size is None


def test_what_is_larger_than_the_new_size_is_kept_until_it_fits_again(
    handbook: str, alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    alice_api.call("PATCH", handbook, {"max_file_size": 8})
    work()
    remote.commit({"README.md": "# A longer handbook\n"})
    watches.request_snapshot(Watch.objects.get().repository)
    work()
    assert sent(alice) == []
    assert len(alice.files_of(Watch.objects.get().repository.public_id)) == 3
    alice_api.call("PATCH", handbook, {"max_file_size": None})
    work()
    assert sent(alice) == [("update", "README.md")]
    assert alice.problems == []


def test_other_options_end_the_cursors_of_the_feed(handbook: str, alice_api: Api) -> None:
    cursor = alice_api.get(f"{handbook}/changes").json()["cursor"]
    assert alice_api.get(f"{handbook}/changes?since={cursor}").status_code == 200
    alice_api.call("PATCH", handbook, {"exclude": ["*.png"]})
    answer = alice_api.get(f"{handbook}/changes?since={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (410, "cursor-expired")


@pytest.mark.any_database
@pytest.mark.parametrize(
    "body",
    [
        {"include": ["/absolute"]},
        {"max_file_size": 0},
        {"max_file_size": True},
        {"branch": "next"},
        {"github_token": "x"},
        [],
    ],
)
def test_wrong_options_are_422_and_change_nothing(handbook: str, alice_api: Api, body: Any) -> None:
    assert alice_api.call("PATCH", handbook, body).status_code == 422
    assert Watch.objects.get().status == WatchStatus.SYNCED


def test_another_apps_watch_is_404(handbook: str, bob_api: Api) -> None:
    assert bob_api.call("PATCH", handbook, {"exclude": ["*"]}).status_code == 404
    assert bob_api.call("DELETE", f"{handbook}/token").status_code == 404


def test_a_refused_file_that_is_not_chosen_any_more_is_not_counted(
    alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(path="logo.png", status=422)):
        path = ensure(alice_api, remote.url)["Location"]
        work()
    assert alice_api.get(path).json()["parked"] == 1
    alice_api.call("PATCH", path, {"exclude": ["*.png"]})
    work()
    assert alice_api.get(path).json()["parked"] == 0
    assert sent(alice)[-1] != ("delete", "logo.png")


def test_a_refused_delete_is_parked_and_not_sent_again(
    handbook: str, alice_api: Api, alice: Receiver, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(path="logo.png", status=422)):
        alice_api.call("PATCH", handbook, {"exclude": ["*.png"]})
        work()
    assert sent(alice) == [("delete", "logo.png")]
    assert Parked.objects.count() == 1
    redelivery.retry_parked(Watch.objects.get())
    work()
    assert sent(alice) == [("delete", "logo.png")]
    assert Parked.objects.count() == 0


def test_a_watch_whose_token_is_refused_keeps_its_reason(alice_api: Api, git_host: GitHost, work: Work) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    path = ensure(alice_api, private.url, github_token="ghp_alice")["Location"]
    work()
    private.private_to = frozenset({"ghp_other"})
    watches.request_snapshot(Watch.objects.get().repository)
    work()
    state = alice_api.call("PATCH", path, {"exclude": ["a"]}).json()
    assert (state["status"], state["last_error"]["code"]) == ("failed", "no-access")


def test_options_of_a_disabled_app_change_and_are_told_once_it_is_enabled(
    handbook: str, alice_api: Api, alice: Receiver, work: Work
) -> None:
    app = App.objects.get()
    accounts.disable_app(app, "for a while")
    assert alice_api.call("PATCH", handbook, {"exclude": ["*.png"]}).json()["app_state"] == "disabled"
    work()
    assert sent(alice) == []
    accounts.enable_app(app)
    work()
    assert sent(alice) == [("delete", "logo.png")]


class DuringTheRun:
    """Does something once, while the receiver has not answered a request of a run."""

    def __init__(self, receiver: Receiver, act: Callable[[], object], *, path: str) -> None:
        self._act = act
        self._path = path
        self.has_acted = False
        receiver.on_request = self

    def __call__(self, request: ReceivedRequest) -> None:
        if request.path == self._path and not self.has_acted:
            self.has_acted = True
            beside(self._act)


@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("held", ["file-03.md", "file-17.md"])
def test_options_that_change_while_a_run_is_under_way(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work, lanes: int, held: str
) -> None:
    """What was acknowledged before and during the change is known: it is deleted, or not sent again."""
    App.objects.update(max_in_flight=lanes)
    many = git_host.create("acme/many")
    many.commit({f"file-{number:02}.md": f"{number}\n" for number in range(20)})
    watch = watches.watch(App.objects.get(), many.url)
    repository_id = watch.repository.public_id
    acted = DuringTheRun(
        alice, lambda: watches.change_options(alice_app, repository_id, exclude=("file-0*",)), path=held
    )
    work()
    assert acted.has_acted
    assert set(alice.files_of(repository_id)) == {f"file-{number}.md" for number in range(10, 20)}
    assert alice.problems == []
    assert_it_knows_what_alice_has(alice)
    creates = [request.path for request in alice.requests if request.event == "create"]
    assert len(creates) == len(set(creates))


def test_options_that_change_back_while_the_deletes_are_under_way(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work
) -> None:
    many = git_host.create("acme/many")
    many.commit({f"file-{number:02}.md": f"{number}\n" for number in range(20)})
    watch = watches.watch(alice_app, many.url)
    repository_id = watch.repository.public_id
    work()
    watches.change_options(alice_app, repository_id, include=("file-00.md",))
    alice.requests.clear()
    DuringTheRun(alice, lambda: watches.change_options(alice_app, repository_id, include=()), path="file-09.md")
    work()
    assert len(alice.files_of(repository_id)) == 20
    assert alice.problems == []
    assert_it_knows_what_alice_has(alice)


def test_a_commit_and_other_options_at_once_are_told_together(
    handbook: str, alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": "# Another\n", "docs/start.md": None, "docs/new.png": b"\x00\xff"})
    alice_api.call("PATCH", handbook, {"exclude": ["*.png"]})
    watches.request_snapshot(Watch.objects.get().repository)
    work()
    assert alice.files_of(Watch.objects.get().repository.public_id) == {"README.md": b"# Another\n"}
    assert alice.problems == []


def test_the_token_is_taken_away_where_the_repository_can_be_read_without_it(
    alice_api: Api, alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    path = ensure(alice_api, remote.url, github_token="ghp_any")["Location"]
    work()
    assert alice_api.call("DELETE", f"{path}/token").status_code == 204
    assert Watch.objects.get().token == ""
    assert alice_api.call("DELETE", f"{path}/token").status_code == 204
    sent(alice)
    work()
    assert sent(alice) == []


def test_a_token_that_is_needed_stays(alice_api: Api, git_host: GitHost, work: Work) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    path = ensure(alice_api, private.url, github_token="ghp_alice")["Location"]
    work()
    answer = alice_api.call("DELETE", f"{path}/token")
    assert (answer.status_code, answer.json()["code"]) == (422, "token-needed")
    assert (Watch.objects.get().token, Watch.objects.get().status) == ("ghp_alice", WatchStatus.SYNCED)


def test_a_selection_is_what_it_chooses_not_how_it_is_written() -> None:
    one = Selection(include=("a", "b"), exclude=("c",), max_file_size=1)
    assert one.is_like(Selection(include=("b", "a"), exclude=("c",), max_file_size=1))
    assert not one.is_like(Selection(include=("a", "b"), exclude=("c",)))
    assert not one.is_like(Selection(include=("a", "b"), max_file_size=1))
