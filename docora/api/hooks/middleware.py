"""Where hooks come in: before sessions, static files, cookies and the list of URLs, none of which they need.

They come in bursts, and those take a tenth of what a hook costs.
"""

from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from docora.api.hooks.receive import receive

_PREFIX = "/hooks/"


class HooksFirst:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        hook_id = request.path_info.removeprefix(_PREFIX)
        if hook_id == request.path_info or not hook_id or "/" in hook_id:
            return self._get_response(request)
        request.get_host()  # as for every other request: refuses a host that ALLOWED_HOSTS does not list
        return receive(request, hook_id)
