"""The Content-Security-Policy of every answer: what a page may load and run.

Inline scripts are refused everywhere. The admin's theme needs two exceptions: its Alpine compiles the expressions in
its templates, which is `unsafe-eval`, and its templates have style attributes and a style element.
"""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

_NO_PAGE = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_PAGE = (
    "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'; connect-src 'self'; "
    "font-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; script-src 'self'"
)
_ADMIN_PAGE = f"{_PAGE} 'unsafe-eval'"
# The pages of errors: a style sheet and an icon.
_PLAIN_PAGE = f"{_NO_PAGE}; style-src 'self'; img-src 'self'"
_API_DOCS = ("/api/docs", "/api/v1/docs")


class ContentSecurityPolicy:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self._get_response(request)
        response.headers.setdefault("Content-Security-Policy", _policy_for(request.path_info, response))
        return response


def _policy_for(path: str, response: HttpResponseBase) -> str:
    if path.startswith("/admin/"):
        return _ADMIN_PAGE
    if path in _API_DOCS:
        return _PAGE
    return _PLAIN_PAGE if response.headers.get("Content-Type", "").startswith("text/html") else _NO_PAGE
