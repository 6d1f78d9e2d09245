"""The HTTP API: statuses, fields and errors as clients rely on them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from django.utils import timezone

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import circuit, watches
from repositories.errors import HostUnavailable, all_errors
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from tests.support.api import Api

pytestmark = pytest.mark.django_db(transaction=True)


def test_watching_answers_what_is_watched(alice_api: Api, remote: HostedRepository) -> None:
    answer = alice_api.watch(remote.url + ".git")
    assert answer.status_code == 201
    repository = Repository.objects.get()
    body = answer.json()
    assert body.pop("created_at").endswith("Z")
    assert body == {
        "repository_id": repository.public_id,
        "github_url": remote.url,
        "owner": "acme",
        "name": "handbook",
        "is_private": False,
        "status": "pending_snapshot",
        "app_state": "enabled",
    }
    assert repository.public_id.startswith("repo_")
    assert len(repository.public_id) == len("repo_") + 24


def test_a_repository_that_only_a_token_can_read_is_private(alice_api: Api, git_host: GitHost) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    assert alice_api.watch(private.url, "ghp_alice").json()["is_private"] is True


@pytest.mark.parametrize("tokens", [{"ghp_alice"}, None])
def test_a_host_that_answers_nobody_without_a_token_keeps_nobody_with_one_from_watching(
    alice_api: Api, git_host: GitHost, monkeypatch: pytest.MonkeyPatch, tokens: set[str] | None
) -> None:
    """Where the host does not say whether a repository is public, it is shown as private."""
    repository = git_host.create("acme/secret", private_to=tokens)
    repository.commit({"a.md": "a"})
    ask = clones.look

    def ask_with_a_token(remote: clones.Remote, *rest: Any) -> Any:
        if not remote.token:
            raise HostUnavailable("The host answered 429.")
        return ask(remote, *rest)

    monkeypatch.setattr(clones, "look", ask_with_a_token)
    answer = alice_api.watch(repository.url, "ghp_alice")
    assert (answer.status_code, answer.json()["is_private"]) == (201, True)


@pytest.mark.any_database
@pytest.mark.parametrize("token", ["", "docora_wrong"])
def test_without_a_valid_token_every_call_is_401(token: str) -> None:
    for method, path in [
        ("POST", "/api/repositories"),
        ("DELETE", "/api/repositories/repo_1"),
        ("PATCH", "/api/repositories/repo_1/token"),
    ]:
        answer = Api(token).call(method, path, {})
        assert answer.status_code == 401
        assert "bearer token" in answer.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"github_url": ""},
        {"github_url": 7},
        {"github_url": "nonsense"},
        {"github_url": "https://evil.example/a/b"},
        {"github_url": "https://github.com/a/b", "github_token": "two\nlines"},
        {"github_url": "https://github.com/a/b", "github_token": "x" * 2001},
        [],
        "{not json",
    ],
)
def test_a_malformed_body_is_422_and_an_rfc_9457_problem(alice_api: Api, body: Any) -> None:
    answer = alice_api.call("POST", "/api/repositories", body)
    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert problem["error"] == problem["detail"]
    assert problem["status"] == 422
    assert problem["code"]


def test_a_refused_token_is_not_repeated(alice_api: Api) -> None:
    answer = alice_api.call("POST", "/api/repositories", {"github_url": "https://x", "github_token": "ghp se cret"})
    assert answer.status_code == 422
    assert "ghp" not in answer.content.decode()


def test_what_cannot_be_read_is_404_and_a_host_that_is_down_is_503(
    alice_api: Api, git_host: GitHost, remote: HostedRepository
) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_bob"})
    private.commit({"a": "b"})
    assert alice_api.watch(remote.url + "-not").status_code == 404
    assert alice_api.watch(private.url).status_code == 404
    assert alice_api.watch(private.url, "ghp_alice").status_code == 404
    with git_host.faults.put(GitFault(status=503)):
        answer = alice_api.watch(remote.url)
    assert answer.status_code == 503
    assert answer["Retry-After"]
    assert not Watch.objects.exists()


def test_unwatching_is_204_once_and_404_afterwards(alice_api: Api, bob_api: Api, remote: HostedRepository) -> None:
    path = f"/api/repositories/{alice_api.watch(remote.url).json()['repository_id']}"
    assert bob_api.call("DELETE", path).status_code == 404
    answer = alice_api.call("DELETE", path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert alice_api.call("DELETE", path).status_code == 404
    assert not Repository.objects.exists()


def test_a_failed_renewal_keeps_the_old_watch(alice_api: Api, git_host: GitHost, remote: HostedRepository) -> None:
    alice_api.watch(remote.url)
    with git_host.faults.put(GitFault(status=500)):
        assert alice_api.watch(remote.url, "x" * 255).status_code == 503
    assert Watch.objects.get().token == ""


def test_changing_the_token_clears_errors_and_keeps_what_was_delivered(
    alice_api: Api, bob_api: Api, alice: Receiver, git_host: GitHost, work: Callable[..., None]
) -> None:
    private = git_host.create("acme/secret", private_to={"old", "new"})
    private.commit({"plan.md": "one"})
    repository_id = alice_api.watch(private.url, "old").json()["repository_id"]
    work()
    git_host.revoke(private, "old")
    watches.request_snapshot(Repository.objects.get())
    work()
    assert Watch.objects.get().status == WatchStatus.FAILED
    path = f"/api/repositories/{repository_id}/token"
    assert bob_api.call("PATCH", path, {"github_token": "new"}).status_code == 404
    assert alice_api.call("PATCH", path, {"github_token": "wrong"}).status_code == 422
    alice.requests.clear()
    answer = alice_api.call("PATCH", path, {"github_token": "new"})
    assert (answer.status_code, answer.json()) == (200, {"message": "Token updated successfully"})
    work()
    watch = Watch.objects.get()
    assert (watch.status, watch.token, watch.last_error) == (WatchStatus.SYNCED, "new", "")
    assert alice.requests == []


def test_the_bearer_token_is_found_with_one_query_however_many_apps(
    alice_api: Api, django_assert_num_queries: Any
) -> None:
    App.objects.bulk_create(
        App(name=f"App {n}", base_url="https://a.example", bearer_hash=f"{n:064d}", webhook_key="k" * 16)
        for n in range(50)
    )
    with django_assert_num_queries(1):
        assert alice_api.call("POST", "/api/repositories", {}).status_code == 422


@pytest.mark.any_database
def test_the_documentation_is_served_from_here(client: Client) -> None:
    page = client.get("/api/docs").content.decode()
    assert "cdn" not in page
    assert "/api/openapi.json" in page
    assets = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert len(assets) >= 3
    assert all(finders.find(asset.removeprefix("/static/")) for asset in assets)


@pytest.mark.any_database
def test_both_mounts_describe_themselves(client: Client) -> None:
    for mount in ("/api/", "/api/v1/"):
        document = client.get(f"{mount}openapi.json").json()
        assert f"{mount}repositories" in document["paths"]
        assert all(path.startswith(mount) for path in document["paths"])
        assert f'"{mount}openapi.json"' in client.get(f"{mount}docs").content.decode()


def test_the_versioned_mount_answers_alike(alice_api: Api, remote: HostedRepository) -> None:
    made = alice_api.call("POST", "/api/v1/repositories", {"url": remote.url}).json()
    path = f"repositories/{made['repository_id']}"
    assert alice_api.get(f"/api/v1/{path}").json() == alice_api.get(f"/api/{path}").json()


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/nothing", 404, "not-found"),
        ("POST", "/api/", 405, "method-not-allowed"),
        ("GET", "/api/v1/repositories/", 404, "not-found"),
        ("PATCH", "/api/repositories", 405, "method-not-allowed"),
        ("GET", "/api/repositories/repo_1/token", 405, "method-not-allowed"),
        ("DELETE", "/api/repositories/repo_%00", 404, "not-watched"),
        ("GET", f"/api/repositories/repo_{'0' * 24}", 404, "not-watched"),
    ],
)
def test_whatever_is_not_there_is_a_problem_document(
    alice_api: Api, method: str, path: str, status: int, code: str
) -> None:
    answer = alice_api.call(method, path)
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    assert (answer.json()["code"], answer.json()["status"]) == (code, status)
    assert (status == 405) == ("Allow" in answer)


@pytest.mark.any_database
def test_an_unexpected_error_tells_nothing_of_the_inside(alice_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the password is hunter2")

    monkeypatch.setattr("docora.api.repositories.watch_to_show", fail)
    answer = alice_api.get("/api/repositories/repo_1")
    assert (answer.status_code, answer.json()["code"]) == (500, "internal-error")
    assert "hunter2" not in answer.content.decode()


@pytest.mark.any_database
def test_a_problem_names_each_wrong_field(alice_api: Api, remote: HostedRepository) -> None:
    answer = alice_api.watch(remote.url, include=["/etc/*", "ok"], max_file_size=0, branch="-x")
    fields = {error["field"]: error["message"] for error in answer.json()["errors"]}
    assert set(fields) == {"include.0", "max_file_size", "branch"}
    assert "below the repository's root" in fields["include.0"]


@pytest.mark.any_database
def test_head_is_get_without_the_body(alice_api: Api) -> None:
    whole, head = alice_api.get("/api/repositories"), alice_api.call("HEAD", "/api/repositories")
    assert (head.status_code, head.content) == (200, b"")
    assert head["Content-Length"] == whole["Content-Length"]


def test_the_list_shows_the_apps_own_watches_page_by_page(
    alice_api: Api, bob_api: Api, git_host: GitHost, work: Callable[..., None]
) -> None:
    urls = []
    for number in range(5):
        repository = git_host.create(f"acme/number-{number}")
        repository.commit({"a.md": "a", "b.md": "bb"})
        urls.append(repository.url)
        alice_api.watch(repository.url)
    bob_api.watch(urls[0])
    work()
    seen, cursor = [], ""
    while cursor is not None:
        page = alice_api.get(f"/api/repositories?limit=2&cursor={cursor}").json()
        assert len(page["repositories"]) <= 2
        seen += page["repositories"]
        cursor = page["next_cursor"]
    assert [item["github_url"] for item in seen] == urls
    assert {(item["status"], item["files"], item["bytes"]) for item in seen} == {("synced", 2, 3)}
    assert len(bob_api.get("/api/repositories").json()["repositories"]) == 1
    assert alice_api.get("/api/repositories?status=failed").json() == {"repositories": [], "next_cursor": None}
    assert len(alice_api.get("/api/repositories?status=synced").json()["repositories"]) == 5
    assert alice_api.get("/api/repositories?status=happy").status_code == 422


@pytest.mark.parametrize("cursor", ["x", "e30", "W10", "WyJ4IiwgLTFd", "WyJ4IiwgMWU5OV0", "%00", "é", "9" * 400])
def test_a_cursor_that_was_not_given_out_is_422(alice_api: Api, cursor: str) -> None:
    assert alice_api.get(f"/api/repositories?cursor={cursor}").status_code == 422


def test_a_watch_tells_how_it_stands(
    alice_api: Api, git_host: GitHost, remote: HostedRepository, work: Callable[..., None]
) -> None:
    made = alice_api.watch(remote.url, exclude=["*.png"]).json()
    path = f"/api/repositories/{made['repository_id']}"
    before = alice_api.get(path).json()
    assert {name: before[name] for name in made} == made
    assert (before["status"], before["commit_sha"], before["files"]) == ("pending_snapshot", None, None)
    work()
    state = alice_api.get(path).json()
    assert (state["status"], state["exclude"], state["branch"]) == ("synced", ["*.png"], None)
    assert state["commit_sha"] == state["synced_commit"] == remote.tip()
    assert (state["files"], state["last_error"], state["circuit"]["status"]) == (3, None, "closed")
    git_host.remove(remote)
    watches.request_snapshot(Repository.objects.get())
    work()
    state = alice_api.get(path).json()
    assert (state["status"], state["last_error"]["code"]) == ("failed", "no-access")
    assert state["commit_sha"] is None


def test_an_open_circuit_is_shown_with_its_reason(
    alice_api: Api, git_host: GitHost, remote: HostedRepository, work: Callable[..., None], settings: Any
) -> None:
    settings.CIRCUIT_BREAKER_THRESHOLD = 1
    repository_id = alice_api.watch(remote.url).json()["repository_id"]
    with git_host.faults.put(GitFault(status=500)):
        work()
    state = alice_api.get(f"/api/repositories/{repository_id}").json()
    assert state["circuit"]["status"] == "open"
    assert state["circuit"]["cooldown_until"] > state["last_checked_at"]
    assert state["last_error"]["code"] == "host-unavailable"
    # A host that did not answer is asked again before the cooldown is over.
    assert state["last_checked_at"] < state["circuit"]["next_probe_at"] < state["circuit"]["cooldown_until"]


def test_a_circuit_is_open_until_its_probe_has_succeeded(
    alice_api: Api, git_host: GitHost, remote: HostedRepository, work: Callable[..., None], settings: Any
) -> None:
    settings.CIRCUIT_BREAKER_THRESHOLD = 1
    path = f"/api/repositories/{alice_api.watch(remote.url).json()['repository_id']}"
    with git_host.faults.put(GitFault(status=500)):
        work()
    circuit.skip_cooldown(Repository.objects.get())
    due = alice_api.get(path).json()["circuit"]
    assert due["status"] == "open"
    assert due["next_probe_at"] == due["cooldown_until"] <= timezone.now().isoformat()
    watches.request_snapshot(Repository.objects.get())
    work()
    assert alice_api.get(path).json()["circuit"] == {
        "status": "closed",
        "consecutive_failures": 0,
        "threshold": 1,
        "cooldown_until": None,
        "next_probe_at": None,
    }


def test_only_the_chosen_files_of_the_chosen_branch_are_delivered(
    alice_api: Api, alice: Receiver, remote: HostedRepository, work: Callable[..., None]
) -> None:
    remote.commit({"docs/a.md": "a", "docs/deep/b.md": "b", "docs/c.txt": "c", "d.md": "d" * 100}, branch="next")
    options: dict[str, Any] = {"branch": "next", "include": ["*.md"], "exclude": ["docs/deep/"], "max_file_size": 99}
    made = alice_api.watch(remote.url, **options).json()
    work()
    assert alice.files == {made["repository_id"]: {"docs/a.md": b"a"}}
    state = alice_api.get(f"/api/repositories/{made['repository_id']}").json()
    assert {name: state[name] for name in options} == options
    assert alice_api.watch(remote.url, branch="nowhere").status_code == 422


def test_renewing_with_other_options_starts_over(
    alice_api: Api, alice: Receiver, remote: HostedRepository, work: Callable[..., None]
) -> None:
    made = alice_api.watch(remote.url, include=["*.png"]).json()
    work()
    again = alice_api.watch(remote.url).json()
    alice.mirror.forget(made["repository_id"])
    work()
    assert again["repository_id"] == made["repository_id"]
    assert alice.files == {made["repository_id"]: remote.files()}


@pytest.mark.any_database
def test_the_documentation_names_every_call_and_every_code(client: Client) -> None:
    docs = Path(__file__).parent.parent.parent / "docs"
    text = (docs / "api.md").read_text()
    paths = client.get("/api/v1/openapi.json").json()["paths"]
    calls = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    documented = {
        call.replace("{id}", "{repository_id}") for call in re.findall(r"^\| `([A-Z]+ /api/v1/\S+)`", text, re.M)
    }
    assert {call.replace("{delivery}", "{delivery_id}") for call in documented} == calls
    codes = {error.code for error in all_errors() if error.http_status != 502}
    of_hooks = (docs / "hooks.md").read_text()
    assert {code for code in codes if f"`{code}`" not in text + of_hooks} == set()
