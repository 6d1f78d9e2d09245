"""Fields and query parameters that a call does not have: refused under /api/v1/, named in `warnings` under /api/."""

from typing import Any

import pytest
from django.test import Client

from docora.api.mount import api, api_v1
from docora.demo.githost import GitHost, HostedRepository
from repositories.models import Watch
from tests.support.api import Api
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


def named(answer: Any, where: str) -> list[str]:
    return [item["field"] for item in answer.json().get(where, [])]


def test_a_misspelt_option_is_refused_by_name_and_nothing_is_watched(alice_api: Api, remote: HostedRepository) -> None:
    body = {"github_url": remote.url, "exlude": ["*.md"]}
    answer = alice_api.call("POST", "/api/v1/repositories", body)
    assert (answer.status_code, answer.json()["code"], named(answer, "errors")) == (422, "malformed", ["exlude"])
    assert "exlude" in answer.json()["error"]
    assert not Watch.objects.exists()


def test_under_the_old_mount_it_is_ignored_and_named_in_warnings(alice_api: Api, remote: HostedRepository) -> None:
    body = {"github_url": remote.url, "exlude": ["*.md"]}
    answer = alice_api.call("POST", "/api/repositories?verbose=1", body)
    assert (answer.status_code, named(answer, "warnings")) == (201, ["verbose", "exlude"])
    assert "warnings" not in alice_api.call("POST", "/api/repositories", {"github_url": remote.url}).json()


def test_an_error_names_the_ignored_field_that_may_have_caused_it(alice_api: Api, git_host: GitHost) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    answer = alice_api.call("POST", "/api/repositories", {"github_url": private.url, "token": "ghp_alice"})
    assert (answer.status_code, named(answer, "warnings")) == (404, ["token"])
    assert "ghp_alice" not in answer.content.decode()


def test_both_names_of_the_url_are_known(alice_api: Api, remote: HostedRepository) -> None:
    for name in ("url", "github_url"):
        assert alice_api.call("POST", "/api/v1/repositories", {name: remote.url}).status_code == 201


def every_call() -> list[tuple[str, str]]:
    return [
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in api_v1.get_openapi_schema(path_prefix="/api/v1/")["paths"].items()
        for method in methods
    ]


@pytest.mark.parametrize(("method", "path"), every_call())
def test_every_call_checks_its_query(
    alice_api: Api, remote: HostedRepository, work: Work, method: str, path: str
) -> None:
    made = alice_api.watch(remote.url).json()
    work()
    ids = {"repository_id": made["repository_id"], "path": "README.md", "delivery_id": "1"}
    bodies = {
        "/repositories": {"github_url": remote.url},
        "/repositories/{repository_id}": {},
        "/repositories/{repository_id}/token": {"github_token": "ghp_any"},
        "/app": {"events": []},
    }
    body = bodies.get(path) if method in {"POST", "PUT", "PATCH"} else None
    answer = alice_api.call(method, f"/api/v1{path.format(**ids)}?limti=5", body)
    assert (answer.status_code, named(answer, "errors")) == (422, ["limti"])


def test_a_call_without_a_body_has_none_of_the_fields_that_are_sent(
    alice_api: Api, remote: HostedRepository, work: Work
) -> None:
    path = f"repositories/{alice_api.watch(remote.url).json()['repository_id']}/resync"
    work()
    answer = alice_api.call("POST", f"/api/v1/{path}", {"paths": ["README.md"]})
    assert (answer.status_code, named(answer, "errors")) == (422, ["paths"])
    answer = alice_api.call("POST", f"/api/{path}", {"paths": ["README.md"]})
    assert (answer.status_code, named(answer, "warnings")) == (202, ["paths"])
    assert alice_api.call("POST", f"/api/v1/{path}", "not json").status_code == 202


def test_a_page_has_its_warnings_beside_its_items(alice_api: Api, remote: HostedRepository) -> None:
    alice_api.watch(remote.url)
    answer = alice_api.get("/api/repositories?page=2")
    assert int(answer["Content-Length"]) == len(answer.content)
    page = answer.json()
    assert (len(page["repositories"]), [item["field"] for item in page["warnings"]]) == (1, ["page"])


def test_a_name_of_a_path_parameter_is_unknown_in_the_query(alice_api: Api, remote: HostedRepository) -> None:
    path = f"/api/v1/repositories/{alice_api.watch(remote.url).json()['repository_id']}?repository_id=7"
    assert named(alice_api.get(path), "errors") == ["repository_id"]


def test_without_a_token_nothing_is_said_of_the_fields() -> None:
    answer = Client().post("/api/v1/repositories?x=1", "{}", content_type="application/json")
    assert (answer.status_code, "errors" in answer.json() and answer.json()["errors"]) == (401, [])


def test_few_of_many_unknown_fields_are_named(alice_api: Api) -> None:
    body = {f"{number:03}" + "x" * 500: 1 for number in range(100)} | {"overlap_seconds": 1}
    answer = alice_api.call("POST", "/api/v1/app/webhook-key/rotate", body)
    assert (answer.status_code, len(named(answer, "errors"))) == (422, 20)
    assert len(answer.content) < 10_000


def test_the_two_mounts_have_the_same_calls() -> None:
    old = api.get_openapi_schema(path_prefix="/api/")["paths"]
    assert {path.removeprefix("/api") for path in old} == {path for _, path in every_call()}
