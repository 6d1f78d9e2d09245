"""Whether this web process answers, and which version it is; for load balancers, without a login."""

import time

from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

import docora

_started = time.monotonic()


@require_safe
@never_cache
def health(_request: HttpRequest) -> JsonResponse:
    now = timezone.now().isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return JsonResponse({"status": "ok", "timestamp": now, "uptime": round(time.monotonic() - _started, 3)})


@require_safe
@never_cache
def version(_request: HttpRequest) -> JsonResponse:
    return JsonResponse({"version": docora.__version__})
