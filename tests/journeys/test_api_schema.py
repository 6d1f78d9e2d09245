"""The OpenAPI document against a running service: whatever is sent, no 5xx, and every answer is as described."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from tests.support.api_cast import ClientApp, settings_for, tracebacks_of
from tests.support.service import Service

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    with GitHost(tmp_path / "host") as host:
        yield host


@pytest.fixture
def repository(host: GitHost) -> HostedRepository:
    repository = host.create("acme/handbook")
    repository.commit({"README.md": "# Handbook\n", "docs/start.md": "Start here.\n"})
    return repository


@pytest.fixture
def app(service: Service, host: GitHost, alice: Receiver) -> ClientApp:
    service.environment |= settings_for(host) | {"DOCORA_APP_RATE": "0", "DOCORA_ADDRESS_RATE": "0"}
    return ClientApp(service.start(), "Alice's search", alice)


class Conversation:
    """Puts what exists in the place of what was made up, now and then."""

    def __init__(self, app: ClientApp, repository: HostedRepository) -> None:
        self.statuses: set[int] = set()
        self._app = app
        self._repository = repository
        self._authorization = {"Authorization": f"Bearer {app.credentials['bearer_token']}"}

    def hold(self, case: Any, *, seriously: bool) -> None:
        if seriously:
            self._name_what_exists(case)
        if isinstance(case.query, dict) and str(case.query.get("wait", "")).isdigit():
            case.query["wait"] = 1
        if isinstance(case.body, dict) and _is_short(case.body.get("overlap_seconds")):
            case.body["overlap_seconds"] = 3600  # the token of the conversation goes on working
        answer = case.call(headers=self._authorization, timeout=40)
        self.statuses.add(answer.status_code)
        if answer.status_code != 414:  # the web server's own refusal of an endless URL
            case.validate_response(answer, checks=CHECKS)

    def _name_what_exists(self, case: Any) -> None:
        if "repository_id" in case.operation.path:
            case.path_parameters["repository_id"] = self._watch()
        if "{path}" in case.operation.path:
            case.path_parameters["path"] = "README.md"
        if isinstance(case.query, dict):
            case.query = {name: value for name, value in case.query.items() if name not in ("since", "cursor")}
        if isinstance(case.body, dict) and "github_url" in case.body:
            case.body = {"github_url": self._repository.url}

    def _watch(self) -> str:
        watched = self._app.get("/api/repositories")["repositories"]
        return str(
            watched[0]["repository_id"] if watched else self._app.watch(self._repository.url).json()["repository_id"]
        )


def _is_short(overlap: Any) -> bool:
    try:
        return float(overlap) < 3600
    except (TypeError, ValueError):
        return False


def test_every_answer_is_as_the_document_says(service: Service, app: ClientApp, repository: HostedRepository) -> None:
    made = app.watch(repository.url).json()
    app.wait_until_synced(made["repository_id"])
    document = schemathesis.openapi.from_url(f"{service.url}/api/v1/openapi.json")
    conversation = Conversation(app, repository)
    for result in document.get_all_operations():
        assert isinstance(result, Ok)
        for mode, examples in ((GenerationMode.POSITIVE, 10), (GenerationMode.NEGATIVE, 6)):
            fuzz(conversation, result.ok(), mode, examples)
    assert conversation.statuses >= {200, 201, 202, 204, 404, 422}
    assert tracebacks_of(service) == []


def fuzz(conversation: Conversation, operation: Any, mode: GenerationMode, examples: int) -> None:
    @given(case=operation.as_strategy(generation_mode=mode), seriously=st.booleans())
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def hold(case: Any, seriously: bool) -> None:
        conversation.hold(case, seriously=seriously)

    hold()
