"""Fields of a body and query parameters that a call does not have.

A misspelt option must not be swallowed: `{"exlude": ["*.md"]}` would send everything. Under /api/v1/ such a request is
refused. Under /api/, where older clients are, the fields are ignored as ever, and the answer names them in `warnings`.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from ninja.errors import ValidationError
from pydantic import BaseModel, ConfigDict

from docora.api.schemas import FieldProblem

View = Callable[..., Any]
Unknown = list[tuple[str, str]]

_NOT_IN_THE_QUERY = {"request", "response", "body"}
# The most that are named, and the most characters of each.
_MOST = 20
_LONGEST = 100


class RequestBody(BaseModel):
    """Keeps what it does not know, so that it can be named. Not ninja's Schema, which would read attributes only."""

    model_config = ConfigDict(extra="allow")


def reads_body(view: View) -> View:
    """Marks a view that reads and checks its body by itself, because that may be large."""
    view.reads_body = True  # type: ignore[attr-defined]
    return view


def refuse_unknown(view: View) -> View:
    """A decorator for every view of a mount: 422 that names each unknown field."""

    def refuse(_: HttpRequest, unknown: Unknown) -> None:
        if unknown:
            raise refusal_of(unknown)

    return _checked(view, refuse)


def refusal_of(unknown: Unknown) -> ValidationError:
    return ValidationError([_complaint(source, name[:_LONGEST]) for source, name in unknown[:_MOST]])


def note_unknown(view: View) -> View:
    """A decorator for every view of a mount: unknown fields are ignored, and `with_warnings` names them."""

    def note(request: HttpRequest, unknown: Unknown) -> None:
        request.unknown_fields = [name[:_LONGEST] for _, name in unknown[:_MOST]]  # type: ignore[attr-defined]

    return _checked(view, note)


def with_warnings(request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
    """Name the fields that were ignored, in answers that are JSON: also in an error, which may be their consequence."""
    ignored: Iterable[str] = getattr(request, "unknown_fields", ())
    if ignored and isinstance(response, HttpResponse) and response.content and "json" in response["Content-Type"]:
        warnings = [FieldProblem(field=name, message="unknown, and ignored").model_dump() for name in ignored]
        response.content = json.dumps({**json.loads(response.content), "warnings": warnings}).encode()
        if "Content-Length" in response:  # of the shorter answer, which would be cut off there
            response["Content-Length"] = str(len(response.content))
    return response


def _checked(view: View, handle: Callable[[HttpRequest, Unknown], None]) -> View:
    in_the_query = inspect.signature(view).parameters.keys() - _NOT_IN_THE_QUERY

    @wraps(view)
    def checked(request: HttpRequest, **values: Any) -> Any:
        in_the_path = request.resolver_match.kwargs if request.resolver_match else {}
        known = in_the_query - in_the_path.keys()
        unknown = [("query", name) for name in request.GET if name not in known]
        if not hasattr(view, "reads_body"):
            unknown += [("body", name) for name in _unknown_in_body(request, values.get("body"))]
        handle(request, unknown)
        return view(request, **values)

    return checked


def _complaint(source: str, name: str) -> dict[str, Any]:
    """In the form of the framework's own errors, which put a field below the parameter that takes the body."""
    if source == "query":
        return {"loc": (source, name), "msg": "this call has no such parameter"}
    return {"loc": (source, "body", name), "msg": "this call has no such field"}


def _unknown_in_body(request: HttpRequest, body: RequestBody | None) -> Iterator[str]:
    if body is not None:
        yield from body.model_extra or ()
    elif request.body:  # the call takes no body, so it has none of these fields
        try:
            sent = json.loads(request.body)
        except (ValueError, RecursionError):
            return
        if isinstance(sent, dict):
            yield from sent
