"""The OpenAPI document, completed by what holds for every call and what the framework cannot know."""

from typing import Any

from ninja.openapi.schema import OpenAPISchema

from docora.api import verify, webhooks
from docora.api.examples import EXAMPLES
from docora.api.problems import CONTENT_TYPE

# What the gate in front of the API, and the look at the bearer token, may answer to any request.
_ANYWHERE = {
    "401": "No bearer token, or an unknown one",
    "405": "Not with this method",
    "408": "The body did not arrive in time",
    "413": "The body is too large",
    "422": "Malformed",
    "429": "Too many requests",
}
# The web server reads few long bodies at a time; DOCORA_MAX_BODY_BYTES decides which calls may have one.
_WITH_A_BODY = {"503": "The server is busy, for instance with other long bodies"}
_HEADERS = {
    "RateLimit-Policy": {
        "description": "The limits that the request counted against: `q` requests in `w` seconds.",
        "schema": {"type": "string"},
        "example": '"address";q=1200;w=60, "app";q=600;w=60',
    },
    "RateLimit": {
        "description": "What is left of them: `r` requests now, all of them again in `t` seconds.",
        "schema": {"type": "string"},
        "example": '"address";r=1199;t=1, "app";r=599;t=1',
    },
    "Retry-After": {
        "description": "Seconds to wait; with 202, 429 and 503.",
        "schema": {"type": "string", "pattern": "^[0-9]+$"},
    },
    "Location": {
        "description": "The path of what was made, under the mount that was used.",
        "schema": {"type": "string", "pattern": "^/api/"},
    },
}
_LIMITS = ("RateLimit-Policy", "RateLimit")
_OF_STATUS = {"201": (*_LIMITS, "Location"), "202": (*_LIMITS, "Retry-After")}


def complete(document: OpenAPISchema, *, is_strict: bool) -> OpenAPISchema:
    components = document["components"]
    components["headers"] = _HEADERS
    components["responses"] = {"Problem": _problem()}
    components["schemas"].update(webhooks.schemas())
    components["schemas"].update(verify.schemas())
    document["webhooks"] = webhooks.section()
    for methods in document["paths"].values():
        for operation in methods.values():
            expected = _ANYWHERE | _WITH_A_BODY if "requestBody" in operation else _ANYWHERE
            operation["responses"] = _responses(operation["responses"], expected)
    for name, schema in components["schemas"].items():
        if name in EXAMPLES:
            schema["examples"] = [EXAMPLES[name]]
        if schema.get("additionalProperties") is True:  # the body of a request
            schema["additionalProperties"] = not is_strict
    if not is_strict:
        _describe_warnings(document)
    return document


def _problem() -> dict[str, Any]:
    """One component for every error of every call."""
    return {
        "description": "An RFC 9457 problem document",
        "headers": _headers((*_LIMITS, "Retry-After")),
        "content": {CONTENT_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def _responses(given: dict[int, Any], expected: dict[str, str]) -> dict[str, Any]:
    responses = {str(status): answer for status, answer in given.items()}
    for status, meaning in expected.items():
        responses.setdefault(status, {"description": meaning})
    for status, answer in responses.items():
        if status >= "400":
            responses[status] = {"$ref": "#/components/responses/Problem", "description": answer["description"]}
        else:
            answer["headers"] = _headers(_OF_STATUS.get(status, _LIMITS))
    return dict(sorted(responses.items()))


def _headers(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


def _describe_warnings(document: OpenAPISchema) -> None:
    """Under the mount that ignores unknown fields, every JSON answer may name them."""
    schemas = document["components"]["schemas"]
    answers = [
        answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for methods in document["paths"].values()
        for operation in methods.values()
        for answer in operation["responses"].values()
        if "application/json" in answer.get("content", {})
    ]
    for name in {*answers, "Problem"}:
        schemas[name]["properties"]["warnings"] = {
            "description": "Fields and query parameters that the call does not have; they were ignored.",
            "type": "array",
            "items": {"$ref": "#/components/schemas/FieldProblem"},
        }
