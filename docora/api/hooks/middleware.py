"""Where hooks that Django answers come in: before sessions, static files, cookies and the list of URLs, none of which
they need."""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from docora.api.hooks.receive import receive

_PREFIX = "/hooks/"


def hook_id_in(path: str) -> str:
    """Empty if the path is not that of a hook."""
    hook_id = path.removeprefix(_PREFIX)
    return hook_id if hook_id != path and "/" not in hook_id else ""


class HooksFirst:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        hook_id = hook_id_in(request.path_info)
        if not hook_id:
            return self._get_response(request)
        request.get_host()  # as for every other request: refuses a host that ALLOWED_HOSTS does not list
        return receive(request, hook_id)
