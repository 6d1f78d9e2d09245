"""For load balancers and alarms, without a login: does this process answer, which version is it, can it work?"""

import time

from django.http import HttpRequest, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

import docora
from docora import condition

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


@require_safe
@never_cache
def ready(_request: HttpRequest) -> JsonResponse:
    """200 if Docora can do its work now, 503 if not."""
    checks = condition.outcomes()
    is_ready = all(outcome == "ok" for outcome in checks.values())
    answer = {"status": "ready" if is_ready else "not ready", "checks": checks}
    return JsonResponse(answer, status=200 if is_ready else 503)
