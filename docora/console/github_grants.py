"""Grants: which app may read which repositories through the operator's GitHub App."""

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from docora.console.base import ThemedAdmin
from docora.console.display import ago, page_link
from repositories import accounts
from repositories.models import GitHubGrant


@admin.register(GitHubGrant)
class GitHubGrantAdmin(ThemedAdmin):
    """Added and deleted, never changed: each changes what an app may read, from that moment on."""

    list_display = ["pattern", "of_app", "granted"]
    list_select_related = ["app"]
    search_fields = ["pattern", "app__name"]
    search_help_text = "Pattern or app"
    fields = ["app", "pattern"]
    autocomplete_fields = ["app"]
    ordering = ["pattern", "pk"]

    @admin.display(description="App", ordering="app__name")
    def of_app(self, grant: GitHubGrant) -> object:
        return page_link(grant.app)

    @admin.display(description="Granted", ordering="created_at")
    def granted(self, grant: GitHubGrant) -> object:
        return ago(grant.created_at)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return lookup == "app__id__exact"

    def save_model(self, request: HttpRequest, obj: GitHubGrant, form: Any, change: bool) -> None:
        made = accounts.grant(obj.app, obj.pattern)
        obj.pk = made.pk

    def delete_model(self, request: HttpRequest, obj: GitHubGrant) -> None:
        accounts.withdraw_grant(obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[GitHubGrant]) -> None:
        for grant in queryset.select_related("app"):
            accounts.withdraw_grant(grant)
