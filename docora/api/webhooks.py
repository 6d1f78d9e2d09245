"""The webhooks as the OpenAPI document describes them. What is sent is made in snapshots.delivery; a test holds it
against these schemas.

A new event is a payload class here and a line in WEBHOOKS.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field
from pydantic.json_schema import JsonSchemaMode, models_json_schema

_SHA = "SHA-256 of the file's bytes, in hex."
_MOMENT = "ISO 8601 in UTC, with milliseconds."


def _sometimes(when: str) -> Any:
    """A key that a body has only then."""
    return Field(default_factory=str, description=when)


class WebhookRepository(BaseModel):
    repository_id: str
    github_url: str
    owner: str
    name: str


class Chunk(BaseModel):
    """Which piece of a file that goes in pieces this is."""

    id: str = Field(description="The same for all pieces of one transfer.")
    index: int = Field(description="From 0.")
    total: int


class DeletedFile(BaseModel):
    path: str = Field(description="A byte that is not UTF-8 appears as %XX; `path_base64` has the exact bytes then.")
    path_base64: str = _sometimes("Only where the path's bytes are not UTF-8.")
    sha: str = Field(description="Of a delete: what was delivered last. " + _SHA)


class DeliveredFile(DeletedFile):
    size: int = Field(description="Of the whole file, in bytes.")
    content: str
    content_encoding: Literal["base64"] = _sometimes("Only where `content` is base64.")
    chunk: Chunk = _sometimes("Only of a file that goes in pieces.")


class _AboutRepository(BaseModel):
    repository: WebhookRepository
    timestamp: str = Field(description=_MOMENT)
    ref_name: str | None = Field(description="The branch or tag that is read now.")
    noticed_at: str | None = Field(description="When Docora noticed what this tells. " + _MOMENT)


class _FilePayload(_AboutRepository):
    commit_sha: str = Field(description="The commit that this content is of.")


class CreatePayload(_FilePayload):
    file: DeliveredFile


class UpdatePayload(CreatePayload):
    previous_sha: str = Field(description="What was delivered before.")


class DeletePayload(_FilePayload):
    file: DeletedFile


class FailureReason(BaseModel):
    type: Literal["git_failure"]
    message: str


class CircuitBreaker(BaseModel):
    status: Literal["open", "closed"]
    consecutive_failures: int
    threshold: int
    cooldown_until: str | None


class _Notice(_AboutRepository):
    circuit_breaker: CircuitBreaker


class SyncFailedPayload(_Notice):
    event: Literal["sync_failed"]
    error: FailureReason
    retry_count: int


class SyncRecoveredPayload(_Notice):
    event: Literal["sync_recovered"]


class StepCounts(BaseModel):
    """What happened since the last complete commit."""

    created: int
    updated: int
    deleted: int
    parked: int = Field(description="Files that the app refused.")
    left_out: int = Field(description="Files over a limit of their size, and submodules.")


class SyncTimes(BaseModel):
    noticed_at: str
    fetched_at: str | None
    first_acknowledged_at: str | None = Field(description="Null: nothing was to be sent.")
    last_acknowledged_at: str | None


class SyncCompletePayload(_AboutRepository):
    event: Literal["sync_complete"]
    commit_sha: str
    previous_commit_sha: str | None = Field(description="The commit that was complete before this one.")
    counts: StepCounts
    files: int = Field(description="How many files the app has now.")
    digest: str = Field(description="One number for all of them: see docs/receivers.md.")
    times: SyncTimes


class PingPayload(BaseModel):
    event: Literal["ping"]
    app_id: str
    timestamp: str = Field(description=_MOMENT)


@dataclass(frozen=True, slots=True)
class Webhook:
    payload: type[BaseModel]
    summary: str


WEBHOOKS = {
    "create": Webhook(CreatePayload, "A file is there that the app does not have"),
    "update": Webhook(UpdatePayload, "A file that the app has contains something else"),
    "delete": Webhook(DeletePayload, "A file that the app has is gone, or is not chosen any more"),
    "sync_failed": Webhook(SyncFailedPayload, "The repository cannot be read for a while"),
    "sync_recovered": Webhook(SyncRecoveredPayload, "It can be read again; only for apps that asked to be told"),
    "sync_complete": Webhook(SyncCompletePayload, "The app has all of a commit; only for apps that asked to be told"),
    "ping": Webhook(PingPayload, "A test of the endpoint, because somebody asked for it"),
}

_SIGNED = {
    "X-Docora-App-Id": "The app's id.",
    "X-Docora-Timestamp": "Unix seconds at signing.",
    "X-Docora-Signature": "`sha256=` and the hex HMAC-SHA256 of `{timestamp}.{body}`.",
    "webhook-id": "The message's id, the same for every attempt.",
    "webhook-timestamp": "Unix seconds at signing.",
    "webhook-signature": "`v1,` and the base64 HMAC-SHA256 of `{id}.{timestamp}.{body}`; several in a rotation.",
}
_ANSWERS = {
    "2XX": "Acknowledged: the message is safe, and is not sent again.",
    "4XX": "409, 413, 415 and 422 are about this one message, which is parked. 410 ends all webhooks to the app.",
    "5XX": "Tried again after a growing pause, or after `Retry-After`; also with 429.",
}


def schemas() -> dict[str, Any]:
    """The payloads as components, with all that they refer to."""
    payloads: list[tuple[type[BaseModel], JsonSchemaMode]] = [
        (hook.payload, "validation") for hook in WEBHOOKS.values()
    ]
    _, found = models_json_schema(payloads, ref_template="#/components/schemas/{model}")
    definitions: dict[str, Any] = found["$defs"]
    return definitions


def section() -> dict[str, Any]:
    return {event: {"post": _operation(event, webhook)} for event, webhook in WEBHOOKS.items()}


def _operation(event: str, webhook: Webhook) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{webhook.payload.__name__}"}
    return {
        "operationId": f"webhook_{event}",
        "summary": webhook.summary,
        "description": f"Docora posts it to {{base_url}}/{event}, signed. Later releases may add keys at the end.",
        "parameters": [
            {"in": "header", "name": name, "required": True, "description": meaning, "schema": {"type": "string"}}
            for name, meaning in _SIGNED.items()
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {status: {"description": meaning} for status, meaning in _ANSWERS.items()},
    }
