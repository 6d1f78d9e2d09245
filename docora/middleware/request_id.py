"""Each request has an id: the one that a proxy or client has given it, or a new one. Every line that is logged for it
has it, and so has every line of the jobs that it asks for. The answer carries it in `X-Request-ID`."""

import re
from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from repositories.base import log_context

HEADER = "X-Request-ID"
_REPOSITORY_ID = re.compile(r"repo_[0-9a-f]{24}")


class RequestId:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        given = log_context.accepted_request_id(request.headers.get(HEADER))
        request_id = given or log_context.new_request_id()
        log_context.add(request_id=request_id)
        try:
            response = self._get_response(request)
        finally:
            log_context.forget()
        response.headers[HEADER] = request_id
        return response

    def process_view(self, _request: HttpRequest, _view: Any, _args: Any, kwargs: dict[str, Any]) -> None:
        repository = str(kwargs.get("repository_id", ""))
        if _REPOSITORY_ID.fullmatch(repository):
            log_context.add(repository=repository)
