"""The gate in front of the API: what is refused before anything is read, and one shape for every error."""

import math
from collections.abc import Callable
from http import HTTPStatus

from django.conf import settings
from django.http import HttpRequest
from django.http.response import HttpResponse, HttpResponseBase

from docora.api.auth import spent_by
from docora.api.problems import CONTENT_TYPE, answer_to, check_length, problem
from docora.api.unknown_fields import with_warnings
from docora.limits import rate
from docora.limits.client_address import client_address
from repositories.errors import DocoraError

# Of what Django and django-ninja answer in their own words.
_CODES = {
    HTTPStatus.BAD_REQUEST: "bad-request",
    HTTPStatus.NOT_FOUND: "not-found",
    HTTPStatus.METHOD_NOT_ALLOWED: "method-not-allowed",
    HTTPStatus.PRECONDITION_FAILED: "precondition-failed",
    HTTPStatus.INTERNAL_SERVER_ERROR: "internal-error",
}


class ApiGate:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith("/api/"):
            return self._get_response(request)
        response = _refusal(request) or self._answer(request)
        _show_limits(response, spent_by(request))
        # Answers carry keys and private code: no cache on the way may keep them.
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        """HEAD is GET without the body, for every endpoint."""
        if request.method != "HEAD":
            return with_warnings(request, _as_problem(self._get_response(request)))
        request.method = "GET"
        response = _as_problem(self._get_response(request))
        response.close()
        return HttpResponse(status=response.status_code, headers=dict(response.items()))


def _refusal(request: HttpRequest) -> HttpResponse | None:
    most = settings.MAX_VERIFY_BODY_BYTES if request.path_info.endswith("/verify") else settings.MAX_BODY_BYTES
    try:
        rate.spend_for_address(client_address(request), spent=spent_by(request))
        check_length(request, most=most)
    except DocoraError as error:
        return answer_to(error)
    return None


def _show_limits(response: HttpResponseBase, spent: rate.Spent) -> None:
    """The two fields of the IETF draft "RateLimit header fields for HTTP", as structured fields (RFC 9651)."""
    if spent:
        response["RateLimit-Policy"] = ", ".join(f'"{limit.name}";q={limit.quota};w={limit.window}' for limit in spent)
        response["RateLimit"] = ", ".join(
            f'"{limit.name}";r={math.floor(limit.left)};t={limit.seconds_to_full}' for limit in spent
        )


def _as_problem(response: HttpResponseBase) -> HttpResponseBase:
    """Errors that the framework worded itself: unknown paths, wrong methods, and what nobody expected."""
    status = HTTPStatus(response.status_code)
    if status not in _CODES or response["Content-Type"] == CONTENT_TYPE or settings.DEBUG:
        return response
    answer = problem(status, status.description or status.phrase, _CODES[status])
    if "Allow" in response:
        answer["Allow"] = response["Allow"]
    return answer
