"""The OpenAPI document, completed by what holds for every call and what the framework cannot know."""

from typing import Any

from ninja.openapi.schema import OpenAPISchema

from docora.api.problems import CONTENT_TYPE

_PROBLEM = {"schema": {"$ref": "#/components/schemas/Problem"}}
_RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}}
# What the gate in front of the API, and the look at the bearer token, may answer to any request.
_ANYWHERE = {
    "401": "No bearer token, or an unknown one",
    "405": "Not with this method",
    "413": "The body is too large",
    "422": "Malformed",
    "429": "Too many requests",
}
_TO_COME_BACK = {"429", "503"}


def complete(document: OpenAPISchema) -> OpenAPISchema:
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["responses"] = _responses(operation["responses"])
    return document


def _responses(given: dict[int, Any]) -> dict[str, Any]:
    responses = {str(status): answer for status, answer in given.items()}
    for status, meaning in _ANYWHERE.items():
        responses.setdefault(status, {"description": meaning})
    for status, answer in responses.items():
        if status >= "400":
            answer["content"] = {CONTENT_TYPE: _PROBLEM}
        if status in _TO_COME_BACK:
            answer["headers"] = _RETRY_AFTER
    return dict(sorted(responses.items()))
