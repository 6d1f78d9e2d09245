"""One shape for every error of the API: RFC 9457 problem documents with the `error` that older clients read."""

from collections.abc import Sequence
from http import HTTPStatus

from django.http import HttpRequest, HttpResponse, JsonResponse

from docora.api.schemas import FieldProblem, Problem
from docora.short_requests import NO_ROOM
from repositories.errors import BodyIncomplete, BodyTooLarge, Busy, DocoraError, LengthRequired

CONTENT_TYPE = "application/problem+json"
_COME_BACK_LATER = {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}


def problem(status: HTTPStatus, detail: str, code: str, *, errors: Sequence[FieldProblem] = ()) -> HttpResponse:
    document = Problem(title=status.phrase, status=status, detail=detail, error=detail, code=code, errors=list(errors))
    return JsonResponse(document.model_dump(), status=status, content_type=CONTENT_TYPE)


def answer_to(error: DocoraError, *, errors: Sequence[FieldProblem] = ()) -> HttpResponse:
    status = HTTPStatus(error.http_status)
    response = problem(status, str(error), error.code, errors=errors)
    if error.retriable and status in _COME_BACK_LATER:
        response["Retry-After"] = str(error.retry_after)
    return response


def answer_without_body(request: HttpRequest) -> HttpResponse:
    """The client has not sent it, or the web server has not read it."""
    if request.META.get(NO_ROOM):
        return answer_to(Busy("Too many long bodies arrive at the moment; see Retry-After."))
    return answer_to(BodyIncomplete())


def check_length(request: HttpRequest, *, most: int) -> None:
    """Before anything of the body is read."""
    if "Transfer-Encoding" in request.headers:
        raise LengthRequired
    length = request.headers.get("Content-Length") or "0"
    if not length.isdecimal() or int(length) > most:
        raise BodyTooLarge(most)
