"""One shape for every error of the API: RFC 9457 problem documents with the `error` that older clients read."""

from collections.abc import Sequence
from http import HTTPStatus

from django.http import HttpResponse, JsonResponse

from docora.api.schemas import FieldProblem, Problem

CONTENT_TYPE = "application/problem+json"


def problem(status: HTTPStatus, detail: str, code: str, *, errors: Sequence[FieldProblem] = ()) -> HttpResponse:
    document = Problem(title=status.phrase, status=status, detail=detail, error=detail, code=code, errors=list(errors))
    return JsonResponse(document.model_dump(), status=status, content_type=CONTENT_TYPE)


def busy(status: HTTPStatus, detail: str, code: str, *, retry_after: int) -> HttpResponse:
    """Come back later."""
    response = problem(status, detail, code)
    response["Retry-After"] = str(retry_after)
    return response
