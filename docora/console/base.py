"""What every page of the console has in common.

The theme comes in here and in `site` and `users` alone: with django.contrib.admin's classes in place of
unfold's, every page works the same in Django's own look.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern
from django.utils.functional import cached_property
from django.utils.safestring import SafeString

from docora.console.display import NOTHING, page_link, title_of
from docora.console.operations import Operation, OperationView, buttons_of

if TYPE_CHECKING:
    ThemedAdmin = admin.ModelAdmin[Any]
    _Paginator = Paginator[Any]
else:
    from unfold.admin import ModelAdmin as ThemedAdmin

    _Paginator = Paginator

# Columns that no page needs: they are not even decrypted.
SECRETS = ("token", "app__webhook_key", "app__previous_webhook_keys")
Fact = tuple[str, object]


def may_operate(request: HttpRequest) -> bool:
    return request.user.has_perm("repositories.change_watch")


class BoundedPaginator(_Paginator):
    """Counts no further than a person would leaf: counting a million rows takes longer than showing a page."""

    MOST = 10_000

    @cached_property
    def count(self) -> int:
        rows = self.object_list
        return rows.order_by().values("pk")[: self.MOST].count() if isinstance(rows, QuerySet) else len(rows)


class ConsoleAdmin(ThemedAdmin):
    """Rows that only the service itself writes: a list, a page of facts, and operations for those who may."""

    operations: ClassVar[Sequence[Operation]] = ()
    # Lookups by which other pages, or the filter of a relation, link to this list.
    linked_by: ClassVar[set[str]] = set()
    change_form_template = "docora/console/detail.html"
    list_per_page = 50
    show_full_result_count = False
    list_fullwidth = True
    view_on_site = False

    def facts(self, obj: Any) -> list[Fact]:
        """What the page of one row says, from the most to the least important.

        Each page must say it; Django's own metaclass leaves no room for an abstract method.
        """
        raise NotImplementedError(f"{type(self).__name__} has to say what its page shows")

    def cure(self, obj: Any, *, may_operate: bool) -> SafeString | str:
        """What to do about the row's state, with links; asked for after the facts, and shown behind the first."""
        return NOTHING

    def panels(self, request: HttpRequest, obj: Any) -> dict[str, object]:
        """What the row's own template shows below the facts."""
        return {}

    def prepare(self, rows: list[Any]) -> None:
        """Give the rows of a list what its columns need, with one query for all of them."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.change_{self.opts.model_name}")

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Only what a filter or a link of ours asks for.

        Django allows every lookup on the model's own columns, so `?bearer_hash__startswith=` would tell a hash letter
        by letter.
        """
        filters = {getattr(name, "parameter_name", f"{name}__exact") for name in self.get_list_filter(request)}
        return lookup in self.linked_by | filters

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        response = super().changelist_view(request, extra_context)
        if changes := (getattr(response, "context_data", None) or {}).get("cl"):
            changes.result_list = list(changes.result_list)
            self.prepare(changes.result_list)
        return response

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response = super().change_view(request, object_id, form_url, extra_context)
        context = getattr(response, "context_data", None) or {}
        if obj := context.get("original"):
            state, *others = self.facts(obj)
            facts = [state, ("What to do", self.cure(obj, may_operate=may_operate(request))), *others]
            context.update(
                facts=[(name, value) for name, value in facts if value != NOTHING],
                buttons=list(buttons_of(self, request, obj)),
                subtitle=None,
                title=title_of(obj),
                **self.panels(request, obj),
            )
        return response

    def get_urls(self) -> list[URLPattern]:
        return [*(OperationView(self, operation).pattern() for operation in self.operations), *super().get_urls()]


class OfAWatchAdmin(ConsoleAdmin):
    """Rows that belong to a watch, which is loaded with them."""

    @admin.display(description="App")
    def app(self, row: Any) -> SafeString:
        return page_link(row.watch.app)

    @admin.display(description="Repository")
    def repository(self, row: Any) -> SafeString:
        return page_link(row.watch.repository)
