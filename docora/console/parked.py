"""Parked files: contents that an endpoint refused for themselves."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from docora.console import bulk
from docora.console.base import BoundedPaginator, Fact, OfAWatchAdmin, may_operate
from docora.console.display import ago, link, list_link, page_link
from docora.console.operations import Operation
from repositories.models import Watch
from snapshots.delivery import redelivery
from snapshots.models import Delivery, Parked


def _retry(parked: Parked, _: dict[str, Any]) -> str:
    redelivery.retry_one_parked(parked)
    return f"{parked.file.path} is being sent to {parked.watch.app.name} again."


@admin.register(Parked)
class ParkedAdmin(OfAWatchAdmin):
    list_display = ["path", "reason", "app", "repository", "parked"]
    list_select_related = ["watch__app", "watch__repository", "file"]
    search_fields = ["file__path", "reason", "watch__app__name"]
    search_help_text = "Path, reason or app"
    linked_by = {"watch__id__exact", "watch__app__id__exact"}
    ordering = ["-pk"]
    paginator = BoundedPaginator
    actions = ["retry_selected"]
    operations = [Operation(name="retry", label="Retry", icon="replay", run=_retry, sends=True)]

    @admin.display(description="Path")
    def path(self, parked: Parked) -> str:
        return parked.file.path

    @admin.display(description="Parked", ordering="parked_at")
    def parked(self, parked: Parked) -> object:
        return ago(parked.parked_at)

    def facts(self, parked: Parked) -> list[Fact]:
        return [
            ("Path", parked.file.path),
            ("Reason", parked.reason),
            ("Watch", page_link(parked.watch)),
            ("Attempts", list_link(Delivery, "Log of deliveries", watch__id__exact=parked.watch_id, when="all")),
            ("Parked", ago(parked.parked_at)),
        ]

    def cure(self, parked: Parked, *, may_operate: bool) -> SafeString | str:
        text = "The endpoint refuses this content. The next content of the path is sent by itself; or "
        url = reverse("admin:snapshots_parked_retry", args=[parked.pk])
        return format_html("{}{}.", text, link(url, "retry") if may_operate else "retry")

    @admin.action(description="Retry all parked files of these watches", permissions=["operate"])
    def retry_selected(self, request: HttpRequest, rows: QuerySet[Parked]) -> HttpResponse:
        return bulk.start(request, "retry_parked", Watch.objects.filter(pk__in=rows.values("watch")))

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return may_operate(request)
