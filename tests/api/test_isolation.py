"""Another app's repository and one that does not exist are the same, also in what the answer costs."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from docora.api.mount import api
from docora.demo.githost import GitHost
from tests.support.api import Api

pytestmark = pytest.mark.django_db(transaction=True)

NOBODYS = "repo_0123456789abcdef01234567"
BODIES = {"patch": {"github_token": "ghp_guess"}, "post …/verify": {"digest": "0" * 64}}
CALLS = [
    (method, path)
    for path, methods in api.get_openapi_schema()["paths"].items()
    for method in methods
    if "{repository_id}" in path
]


def answer_and_cost(api: Api, method: str, path: str, body: Any = None) -> tuple[int, str, list[str]]:
    """Status and body, and the statements that the database was asked, without their values."""
    with CaptureQueriesContext(
        connection,
    ) as asked:
        answer = api.call(method.upper(), path, body)
    statements = [re.sub(r"'[^']*'|\b\d+\b", "?", query["sql"]) for query in asked.captured_queries]
    return answer.status_code, answer.content.decode(), statements


@pytest.mark.any_database
@pytest.mark.parametrize(("method", "path"), CALLS)
def test_the_repository_of_another_app_is_as_unknown_as_none(
    alice_api: Api, bob_api: Api, git_host: GitHost, method: str, path: str, work: Callable[..., None]
) -> None:
    private = git_host.create("acme/secret", private_to={"bob-token"})
    private.commit({"plan.md": "secret"})
    bobs = bob_api.watch(private.url, "bob-token").json()["repository_id"]
    work()
    door = path.replace("{path}", "plan.md").replace("{delivery_id}", "1")
    asked = len(git_host.requests)
    body = BODIES.get("post …/verify" if path.endswith("/verify") else method)
    theirs, none = (
        answer_and_cost(alice_api, method, door.replace("{repository_id}", public_id), body)
        for public_id in (bobs, NOBODYS)
    )
    assert theirs == none
    assert theirs[0] == 404
    assert len(git_host.requests) == asked


def test_watching_tells_nothing_of_what_other_apps_watch(alice_api: Api, bob_api: Api, git_host: GitHost) -> None:
    for name in ("watched", "unknown"):
        git_host.create(f"acme/{name}", private_to={"bob-token"}).commit({"plan.md": "secret"})
    url = f"http://{git_host.address}/acme"
    assert bob_api.watch(f"{url}/watched", "bob-token").status_code == 201
    watched, unknown, absent = (
        answer_and_cost(
            alice_api, "POST", "/api/repositories", {"github_url": f"{url}/{name}", "github_token": "guess"}
        )
        for name in ("watched", "unknown", "absent")
    )
    assert watched[0] == 404
    assert watched[1].replace("watched", "") == unknown[1].replace("unknown", "") == absent[1].replace("absent", "")
    assert watched[2] == unknown[2] == absent[2]
