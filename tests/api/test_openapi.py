"""The OpenAPI document: examples and webhooks that are true, and one component for all errors."""

import json
from typing import Any

import jsonschema_rs
import pytest
from django.test import Client

from docora.api.webhooks import WEBHOOKS
from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import accounts, watches
from repositories.models import App, OptionalEvent, Watch
from snapshots.delivery import notices
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@pytest.fixture
def document(client: Client) -> Any:
    return client.get("/api/v1/openapi.json").json()


def operations(document: Any) -> list[Any]:
    return [operation for methods in document["paths"].values() for operation in methods.values()]


def validator(document: Any, name: str) -> jsonschema_rs.Validator:
    """Of one component; every key that is not described is an error."""
    components = json.loads(json.dumps(document["components"]))
    for schema in components["schemas"].values():
        if schema.get("type") == "object":
            schema["additionalProperties"] = False
    return jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{name}", "components": components})


def bodies(document: Any) -> set[str]:
    """The schemas of all that is sent, answered and delivered."""
    webhooks = [path["post"] for path in document["webhooks"].values()]
    content = [
        part.get("content", {}).get("application/json")
        for operation in operations(document) + webhooks
        for part in (operation.get("requestBody", {}), *operation["responses"].values())
    ]
    refs = [_ref(part["schema"]) for part in content if part]
    return {ref.rpartition("/")[2] for ref in [*refs, "Problem"]}


def _ref(schema: Any) -> str:
    found: str = schema.get("$ref") or schema["allOf"][0]["$ref"]
    return found


def test_every_body_has_an_example_that_its_schema_accepts(document: Any) -> None:
    schemas = document["components"]["schemas"]
    assert {name for name in bodies(document) if not schemas[name].get("examples")} == set()
    for name, schema in schemas.items():
        for example in schema.get("examples", []):
            validator(document, name).validate(example)


def test_every_error_of_every_call_is_one_component(document: Any) -> None:
    errors = [
        answer
        for operation in operations(document)
        for status, answer in operation["responses"].items()
        if status >= "400"
    ]
    assert {answer["$ref"] for answer in errors} == {"#/components/responses/Problem"}
    assert list(document["components"]["responses"]) == ["Problem"]


def test_every_call_with_a_body_may_find_the_server_busy(document: Any) -> None:
    with_a_body = [operation for operation in operations(document) if "requestBody" in operation]
    assert with_a_body
    assert [operation["operationId"] for operation in with_a_body if "503" not in operation["responses"]] == []


def test_bodies_are_closed_under_v1_and_open_with_warnings_under_the_old_mount(document: Any, client: Client) -> None:
    old = client.get("/api/openapi.json").json()["components"]["schemas"]
    new = document["components"]["schemas"]
    assert new["WatchRequest"]["additionalProperties"] is False
    assert old["WatchRequest"]["additionalProperties"] is True
    assert "warnings" in old["RepositoryPage"]["properties"]
    assert "warnings" not in new["RepositoryPage"]["properties"]


def test_what_is_delivered_is_what_the_webhooks_section_describes(
    document: Any,
    alice_app: App,
    alice: Receiver,
    remote: HostedRepository,
    git_host: GitHost,
    work: Work,
    settings: Any,
) -> None:
    settings.CIRCUIT_BREAKER_THRESHOLD = 1
    settings.BINARY_CHUNK_THRESHOLD_BYTES = 100
    settings.BINARY_CHUNK_SIZE_BYTES = 200
    accounts.choose_events(alice_app, OptionalEvent.values)
    remote.commit({b"large.bin": b"\xff" * 400, b"caf\xe9.txt": b"a name that is not UTF-8\n"})
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"README.md": "# Another\n", "logo.png": None})
    ask(watch, work)
    with git_host.faults.put(GitFault(status=500)):
        ask(watch, work)
    watches.reset_circuit(watch.repository)
    work()
    notices.ping(alice_app)
    seen = {request.event for request in alice.requests}
    assert seen == set(WEBHOOKS)
    for request in alice.requests:
        payload = document["webhooks"][request.event]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator(document, _ref(payload).rpartition("/")[2]).validate(json.loads(request.body))
    headers = {parameter["name"] for parameter in document["webhooks"]["create"]["post"]["parameters"]}
    assert {name.lower() for name in headers} <= alice.requests[0].headers.keys()


def ask(watch: Watch, work: Work) -> None:
    watches.request_snapshot(watch.repository)
    work()


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/v1", "/api/v1/"])
def test_the_mounts_lead_to_the_documentation(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer["Location"]) == (302, "/api/v1/docs")
    assert client.post(path).status_code == 405
