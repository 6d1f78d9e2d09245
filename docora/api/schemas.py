"""What the requests and answers of several endpoints have in common."""

from typing import Annotated

from ninja import Field, Query, Schema
from pydantic import BeforeValidator


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("a number, not true or false")
    return value


WholeNumber = Annotated[int, BeforeValidator(_no_bool)]


class FieldProblem(Schema):
    field: str
    message: str


class Problem(Schema):
    """An RFC 9457 problem document, with the `error` that older clients read."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    error: str = Field(description="The same as `detail`.")
    code: str = Field(description="For machines; does not change.")
    errors: list[FieldProblem] = Field([], description="What is wrong with which field.")


# The OpenAPI document adds what every call may answer: see docora.api.openapi.
UNKNOWN = {404: Problem}
REFUSED = {404: Problem, 422: Problem}
REMOTE = {502: Problem, 503: Problem}

Limit = Annotated[int, Query(ge=1, le=1000, description="The most items of one page.")]
CURSOR = {"max_length": 500, "pattern": "^[A-Za-z0-9_-]*$"}
Cursor = Annotated[str, Query(**CURSOR, description="`next_cursor` of the page before; nothing: from the beginning.")]


class Message(Schema):
    message: str
