"""POST …/verify: by one number or file by file, and what is sent again after it."""

import base64
import hashlib
from typing import Any

import pytest
from pytest_django import Settings

from docora.api import verify
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts
from repositories.models import Repository, Watch
from repositories.watches import request_snapshot
from snapshots import holdings
from snapshots.delivery import redelivery
from tests.support.api import Api
from tests.support.worker import Look, Work

pytestmark = pytest.mark.django_db(transaction=True)

NOTHING: dict[str, list[Any]] = {name: [] for name in ("missing", "different", "extra", "pending", "unknown")}


@pytest.fixture
def look(work: Work) -> Look:
    """Take a snapshot of the only repository and deliver it."""

    def take() -> Repository:
        request_snapshot(Repository.objects.get())
        work()
        return Repository.objects.get()

    return take


@pytest.fixture
def api(watch: Watch) -> Api:
    return Api(accounts.rotate_bearer_token(watch.app))


def ask(api: Api, watch: Watch, body: Any, *, base: str = "/api") -> Any:
    return api.call("POST", f"{base}/repositories/{watch.repository.public_id}/verify", body)


def listed(files: dict[str, bytes]) -> list[dict[str, str]]:
    return [{"path": path, "sha": hashlib.sha256(content).hexdigest()} for path, content in files.items()]


def difference(answer: Any) -> dict[str, list[str]]:
    found = answer.json()
    assert found["counts"] == {name: len(found[name]) for name in NOTHING}
    return {name: [item["path"] for item in found[name]] for name in NOTHING}


@pytest.mark.parametrize("base", ["/api", "/api/v1"])
def test_a_digest_is_equal_or_not(api: Api, watch: Watch, work: Work, alice: Receiver, base: str) -> None:
    watch.refresh_from_db()
    alice.requests.clear()
    answer = ask(api, watch, {"digest": watch.digest}, base=base).json()
    assert (answer["equal"], answer["files"], answer["digest"]) == (True, 3, watch.digest)
    assert answer["commit_sha"] == watch.synced_commit
    answer = ask(api, watch, {"digest": "0" * 64}, base=base).json()
    assert (answer["equal"], answer["counts"]) == (False, None)
    work()
    assert not alice.requests


def test_an_app_that_has_everything_is_sent_nothing(
    api: Api, watch: Watch, remote: HostedRepository, work: Work, alice: Receiver
) -> None:
    alice.requests.clear()
    answer = ask(api, watch, {"files": listed(remote.files())})
    assert answer.json()["equal"] is True
    assert difference(answer) == NOTHING
    work()
    assert not alice.requests


def test_what_is_missing_or_different_is_sent_again(
    api: Api, watch: Watch, remote: HostedRepository, work: Work, alice: Receiver
) -> None:
    files = remote.files()
    alice.mirror.repeats_are_allowed = True
    alice.requests.clear()
    alice.files[watch.repository.public_id] = {"logo.png": b"damaged", "docs/start.md": files["docs/start.md"]}
    answer = ask(api, watch, {"files": listed(alice.files[watch.repository.public_id])})
    assert answer.json()["equal"] is False
    assert difference(answer) == NOTHING | {"missing": ["README.md"], "different": ["logo.png"]}
    work()
    assert [(request.event, request.path) for request in alice.requests] == [
        ("create", "README.md"), ("update", "logo.png")
    ]  # fmt: skip
    assert alice.files[watch.repository.public_id] == files
    assert ask(api, watch, {"files": listed(files)}).json()["equal"] is True


def test_a_path_that_docora_never_knew_is_named_and_stays(
    api: Api, watch: Watch, remote: HostedRepository, work: Work, alice: Receiver
) -> None:
    alice.requests.clear()
    files = remote.files() | {"notes/mine.md": b"never in the repository"}
    assert difference(ask(api, watch, {"files": listed(files)})) == NOTHING | {"unknown": ["notes/mine.md"]}
    work()
    assert not alice.requests


def test_the_delete_of_a_file_that_the_app_still_has_is_sent_again(
    api: Api, watch: Watch, remote: HostedRepository, look: Look, work: Work, alice: Receiver
) -> None:
    before = remote.files()
    remote.commit({"README.md": None})
    look()
    alice.mirror.repeats_are_allowed = True
    alice.requests.clear()
    assert difference(ask(api, watch, {"files": listed(before)})) == NOTHING | {"extra": ["README.md"]}
    watch.refresh_from_db()
    assert holdings.recorded(watch) == holdings.counted(watch)
    work()
    assert [(request.event, request.path) for request in alice.requests] == [("delete", "README.md")]
    watch.refresh_from_db()
    assert holdings.recorded(watch) == holdings.counted(watch)


def test_a_file_that_is_not_acknowledged_yet_is_pending(
    api: Api, watch: Watch, remote: HostedRepository, look: Look, alice: Receiver
) -> None:
    remote.commit({"new.md": "refused"})
    with alice.faults.put(ReceiverFault(status=422)):
        look()
    assert difference(ask(api, watch, {"files": listed(remote.files())})) == NOTHING | {"pending": ["new.md"]}


def test_what_the_app_lacks_is_sent_also_if_it_refused_the_newest_content(
    api: Api, watch: Watch, remote: HostedRepository, look: Look, work: Work, alice: Receiver
) -> None:
    remote.commit({"README.md": "refused", "logo.png": None})
    with alice.faults.put(ReceiverFault(status=422)):
        look()
    alice.requests.clear()
    alice.mirror.repeats_are_allowed = True
    held = alice.files[watch.repository.public_id]
    del held["README.md"]
    held["logo.png"] = b"kept although deleted"
    found = difference(ask(api, watch, {"files": listed(held)}))
    assert found == NOTHING | {"missing": ["README.md"], "pending": ["logo.png"]}
    work()
    assert [(request.event, request.path) for request in alice.requests] == [("create", "README.md")]
    watch.refresh_from_db()
    assert holdings.recorded(watch) == holdings.counted(watch)
    redelivery.retry_parked(watch)
    work()
    assert held == remote.files()
    assert ask(api, watch, {"files": listed(held)}).json()["equal"] is True


@pytest.mark.parametrize("limit", ["the operator's", "the app's"])
def test_what_has_grown_too_large_is_named_and_not_sent(
    api: Api, watch: Watch, remote: HostedRepository, look: Look, work: Work, alice: Receiver, settings: Settings,
    limit: str,
) -> None:  # fmt: skip
    if limit == "the operator's":
        settings.MAX_FILE_BYTES = 100
    else:
        Watch.objects.update(max_file_size=100)
    remote.commit({"README.md": "x" * 101})
    look()
    alice.requests.clear()
    held = {path: content for path, content in alice.files[watch.repository.public_id].items() if path != "README.md"}
    assert difference(ask(api, watch, {"files": listed(held)})) == NOTHING | {"pending": ["README.md"]}
    watch.refresh_from_db()
    assert not watch.asked_again
    work()
    assert not alice.requests


def test_a_part_of_the_files_can_be_compared(api: Api, watch: Watch, remote: HostedRepository) -> None:
    files = listed({"README.md": remote.files()["README.md"], "logo.png": b"damaged"})
    assert difference(ask(api, watch, {"files": files, "partial": True})) == NOTHING | {"different": ["logo.png"]}


def test_a_path_that_is_not_utf8_is_named_by_its_bytes(
    api: Api, watch: Watch, remote: HostedRepository, look: Look
) -> None:
    remote.commit({b"caf\xe9.md": "x"})
    look()
    exact = {"path": "caf%E9.md", "path_base64": base64.b64encode(b"caf\xe9.md").decode()}
    known = [file for file in listed(remote.files()) if file["path"].isascii()]
    answer = ask(api, watch, {"files": known}).json()
    assert answer["missing"] == [exact]
    given = {"path_base64": exact["path_base64"], "sha": hashlib.sha256(b"x").hexdigest()}
    assert ask(api, watch, {"files": [*known, given]}).json()["equal"] is True


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ("no JSON", "body"),
        ([], "body"),
        ({}, "body"),
        ({"digest": "0" * 63}, "digest"),
        ({"digest": "0" * 64, "files": []}, "body"),
        ({"files": {}}, "files"),
        ({"files": [{"path": "a"}]}, "files.0"),
        ({"files": [{"path": 1, "sha": "0" * 64}]}, "files.0"),
        ({"files": [{"path_base64": "!", "sha": "0" * 64}]}, "files.0"),
        ({"files": [{"path": "a", "sha": "0" * 64}] * 2}, "files"),
        ({"files": [], "partial": "yes"}, "partial"),
        ({"files": [], "partail": True}, "partail"),
        ({"files": [{"path": "\ud800", "sha": "0" * 64}]}, "body"),
    ],
)
def test_a_question_that_makes_no_sense_is_422_and_names_the_field(
    api: Api, watch: Watch, body: Any, field: str
) -> None:
    answer = ask(api, watch, body)
    assert (answer.status_code, answer.json()["code"]) == (422, "malformed")
    assert [complaint["field"] for complaint in answer.json()["errors"]] == [field]


def test_a_list_may_be_long_but_has_a_limit(
    api: Api, watch: Watch, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [{"path": f"docs/{number:05}.md", "sha": "0" * 64} for number in range(1001)]
    answer = ask(api, watch, {"files": files, "partial": True}).json()
    assert (answer["counts"]["unknown"], len(answer["unknown"])) == (1001, 1000)
    monkeypatch.setattr(verify, "MOST_FILES", 1000)
    assert ask(api, watch, {"files": files}).status_code == 422
    settings.MAX_VERIFY_BODY_BYTES = 1000
    assert ask(api, watch, {"files": files}).status_code == 413


@pytest.mark.any_database
def test_one_long_list_at_a_time(api: Api, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [{"path": f"docs/{number:05}.md", "sha": "0" * 64} for number in range(1000)]
    with verify._one_list:
        answer = ask(api, watch, {"files": files, "partial": True})
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert ask(api, watch, {"digest": "0" * 64}).status_code == 200
    assert ask(api, watch, {"files": files, "partial": True}).status_code == 200


def test_nobody_learns_which_paths_there_are_without_access(
    alice_app: Any, bob_api: Api, watch: Watch, git_host: GitHost, remote: HostedRepository, api: Api
) -> None:
    assert ask(bob_api, watch, {"files": []}).status_code == 404
    assert ask(bob_api, watch, {"digest": "0" * 64}).status_code == 404
    git_host.remove(remote)
    Watch.objects.update(access_proven_at=None)
    assert ask(api, watch, {"files": listed({"README.md": b""})}).status_code == 403


def test_a_disabled_app_is_told_that_nothing_is_sent(api: Api, watch: Watch) -> None:
    accounts.disable_app(watch.app, "for a test")
    assert ask(api, watch, {"files": []}).json()["code"] == "endpoint-disabled"
