"""The HTTP API: statuses, fields and errors as clients rely on them."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import services
from repositories.models import App, Repository, Watch, WatchStatus

pytestmark = pytest.mark.django_db(transaction=True)


class Api:
    def __init__(self, bearer_token: str) -> None:
        self._client = Client(headers={"Authorization": f"Bearer {bearer_token}"} if bearer_token else None)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = body if isinstance(body, str) else json.dumps(body)
        return self._client.generic(method, path, "" if body is None else data, content_type="application/json")

    def watch(self, url: str, token: str | None = None) -> Any:
        body = {"github_url": url} if token is None else {"github_url": url, "github_token": token}
        return self.call("POST", "/api/repositories", body)


@pytest.fixture
def alice_api(alice: Receiver) -> Api:
    return Api(services.onboard("Alice's search", alice.url, webhook_key=alice.webhook_keys[0]).bearer_token)


@pytest.fixture
def bob_api(bob: Receiver) -> Api:
    return Api(services.onboard("Bob's wiki", bob.url, webhook_key=bob.webhook_keys[0]).bearer_token)


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
    }
    assert repository.public_id.startswith("repo_")
    assert len(repository.public_id) == len("repo_") + 24


def test_a_repository_that_only_a_token_can_read_is_private(alice_api: Api, git_host: GitHost) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    assert alice_api.watch(private.url, "ghp_alice").json()["is_private"] is True


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
    services.request_snapshot(Repository.objects.get())
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


def test_the_documentation_is_served_from_here(client: Client) -> None:
    page = client.get("/api/docs").content.decode()
    assert "cdn" not in page
    assert "/api/openapi.json" in page
