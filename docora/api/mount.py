"""The HTTP API: all endpoints together, and what each error means to a client.

One definition, two mounts: /api/v1/ refuses what it does not know, /api/, where older clients are, names it.
"""

from http import HTTPStatus
from pathlib import Path
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, UnreadablePostError
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError
from ninja.openapi.docs import Swagger
from ninja.openapi.schema import OpenAPISchema

from docora import __version__
from docora.api import app, changes, deliveries, files, openapi, repositories, unknown_fields, verify
from docora.api.auth import BearerToken
from docora.api.hooks import routes as hooks
from docora.api.problems import answer_to, answer_without_body
from docora.api.schemas import FieldProblem
from repositories.errors import DocoraError, Malformed, NotFound, RangeNotSatisfiable, Unauthenticated

_DESCRIPTION = "Watch git repositories; every created, updated and deleted file arrives at your webhook, signed."


class LocalDocs(Swagger):
    """A page of our own, served from here. Without its app, django-ninja takes `template_cdn`."""

    template_cdn = str(Path(__file__).parent.parent / "templates/docora/api_docs.html")


class DocoraApi(NinjaAPI):
    def __init__(self, name: str, *, is_strict: bool) -> None:
        super().__init__(
            title="Docora",
            version=__version__,
            description=_DESCRIPTION,
            urls_namespace=name,
            auth=BearerToken(),
            docs=LocalDocs(),
            docs_url="/docs",
        )
        self._is_strict = is_strict
        for error, handler in _HANDLERS.items():
            self.add_exception_handler(error, handler)
        check = unknown_fields.refuse_unknown if is_strict else unknown_fields.note_unknown
        self.add_decorator(check, mode="operation")  # after the validation
        for room in (repositories, hooks, files, changes, verify, deliveries, app):
            self.add_router("", room.router)

    def get_openapi_schema(self, **mount: Any) -> OpenAPISchema:
        return openapi.complete(super().get_openapi_schema(**mount), is_strict=self._is_strict)


def _expected(request: HttpRequest, error: DocoraError) -> HttpResponse:
    return answer_to(error)


def _unsatisfiable(request: HttpRequest, error: RangeNotSatisfiable) -> HttpResponse:
    response = answer_to(error)
    response["Content-Range"] = f"bytes */{error.size}"
    return response


def _unauthenticated(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    response = answer_to(Unauthenticated())
    response["WWW-Authenticate"] = "Bearer"
    return response


def _malformed(request: HttpRequest, error: ValidationError) -> HttpResponse:
    complaints = [_complaint(item) for item in error.errors]
    detail = "; ".join(f"{complaint.field}: {complaint.message}" for complaint in complaints)
    return answer_to(Malformed(detail), errors=complaints)


def _refused(request: HttpRequest, error: HttpError) -> HttpResponse:
    is_no_json = error.status_code == HTTPStatus.BAD_REQUEST  # as the framework calls it
    return answer_to(Malformed(str(error), http_status=422 if is_no_json else error.status_code))


def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    return answer_to(NotFound())


def _unreadable(request: HttpRequest, error: UnreadablePostError) -> HttpResponse:
    return answer_without_body(request)


_HANDLERS: dict[type[Exception], Any] = {
    DocoraError: _expected,
    RangeNotSatisfiable: _unsatisfiable,
    AuthenticationError: _unauthenticated,
    ValidationError: _malformed,
    HttpError: _refused,
    Http404: _not_found,
    UnreadablePostError: _unreadable,
}


def _complaint(item: dict[str, Any]) -> FieldProblem:
    """Names the field, never the value: it may be a token."""
    source, *place = item["loc"]
    named = place[1:] if source == "body" else place
    message = item["msg"].removeprefix("Value error, ")
    return FieldProblem(field=".".join(map(str, named)) or str(source), message=message)


api = DocoraApi("api", is_strict=False)
api_v1 = DocoraApi("api-v1", is_strict=True)
