"""django-rq's own pages of queues, jobs and workers: viewers may look, operators may act, and actions are logged."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django_rq.admin import QueueAdmin
from django_rq.models import Dashboard

if TYPE_CHECKING:
    _QueueAdmin = admin.ModelAdmin[Any]
else:
    _QueueAdmin = QueueAdmin

View = Callable[..., HttpResponse]

admin.site.unregister(Dashboard)


@admin.register(Dashboard)
class GuardedQueueAdmin(_QueueAdmin):
    def has_module_permission(self, request: HttpRequest) -> bool:
        return _may_look(request)

    def get_urls(self) -> list[URLPattern]:
        urls = super().get_urls()
        for pattern in urls:
            pattern.callback = _guarded(pattern.callback, str(pattern.name))
        return urls


def _may_look(request: HttpRequest) -> bool:
    """Everybody with a role; django-rq has no permission for it."""
    return request.user.has_perm("repositories.view_watch")


def _guarded(view: View, name: str) -> View:
    """django-rq lets every staff member do everything; all that changes something is a POST."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated and not _may_look(request):
            raise PermissionDenied
        if request.method != "POST":
            return view(request, *args, **kwargs)
        if not request.user.has_perm("django_rq.admin"):
            raise PermissionDenied
        response = view(request, *args, **kwargs)
        _log(request, name)
        return response

    return guarded


def _log(request: HttpRequest, name: str) -> None:
    LogEntry.objects.create(
        user_id=request.user.pk or 0,
        content_type=ContentType.objects.get_for_model(Dashboard),
        object_repr=f"Queue: {request.path.removeprefix('/admin/django_rq/dashboard/')}"[:200],
        action_flag=CHANGE,
        change_message=name.removeprefix("django_rq_").replace("_", " "),
    )
