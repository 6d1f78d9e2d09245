"""The HTTP API: one document for all rooms, and one shape for every error."""

from http import HTTPStatus
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.errors import AuthenticationError, HttpError, ValidationError

from docora import __version__
from repositories.api import BearerToken, Problem, router
from repositories.errors import (
    AccessDenied,
    DocoraError,
    ForbiddenAddress,
    HostUnavailable,
    InvalidUrl,
    RefNotFound,
)
from repositories.services import NotWatched, TokenRefused

api = NinjaAPI(
    title="Docora",
    version=__version__,
    description="Watch git repositories; every created, updated and deleted file arrives at your webhook, signed.",
    auth=BearerToken(),
    docs_url="/docs",
)
api.add_router("", router)

_STATUS: dict[type[DocoraError], HTTPStatus] = {
    InvalidUrl: HTTPStatus.UNPROCESSABLE_ENTITY,
    ForbiddenAddress: HTTPStatus.UNPROCESSABLE_ENTITY,
    RefNotFound: HTTPStatus.UNPROCESSABLE_ENTITY,
    TokenRefused: HTTPStatus.UNPROCESSABLE_ENTITY,
    AccessDenied: HTTPStatus.NOT_FOUND,
    NotWatched: HTTPStatus.NOT_FOUND,
    HostUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
}
_RETRY_AFTER = "30"


def _problem(request: HttpRequest, status: HTTPStatus, detail: str, code: str) -> HttpResponse:
    problem = Problem(title=status.phrase, status=status, detail=detail, error=detail, code=code)
    response = api.create_response(request, problem.dict(), status=status)
    response["Content-Type"] = "application/problem+json"
    if status is HTTPStatus.SERVICE_UNAVAILABLE:
        response["Retry-After"] = _RETRY_AFTER
    return response


@api.exception_handler(DocoraError)
def _expected(request: HttpRequest, error: DocoraError) -> HttpResponse:
    status = _STATUS.get(type(error), HTTPStatus.BAD_GATEWAY)
    return _problem(request, status, str(error), error.code)


@api.exception_handler(AuthenticationError)
def _unauthenticated(request: HttpRequest, error: AuthenticationError) -> HttpResponse:
    response = _problem(request, HTTPStatus.UNAUTHORIZED, "A valid bearer token is needed.", "unauthenticated")
    response["WWW-Authenticate"] = "Bearer"
    return response


@api.exception_handler(ValidationError)
def _malformed(request: HttpRequest, error: ValidationError) -> HttpResponse:
    return _problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(map(_complaint, error.errors)), "malformed")


@api.exception_handler(HttpError)
def _refused(request: HttpRequest, error: HttpError) -> HttpResponse:
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.BAD_REQUEST:  # how the framework calls a body that is not JSON
        status = HTTPStatus.UNPROCESSABLE_ENTITY
    return _problem(request, status, str(error), "malformed")


@api.exception_handler(Http404)
def _not_found(request: HttpRequest, error: Http404) -> HttpResponse:
    return _problem(request, HTTPStatus.NOT_FOUND, "Nothing is here.", "not-found")


def _complaint(item: dict[str, Any]) -> str:
    """Names the field, never the value: it may be a token."""
    field = ".".join(str(part) for part in item["loc"][2:]) or "body"
    return f"{field}: {item['msg']}"
