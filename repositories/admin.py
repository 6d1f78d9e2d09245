"""The operator's view of apps, repositories and watches. Secrets are never shown."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from repositories.models import App, Repository, Watch

if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


class ReadOnlyAdmin(_ModelAdmin):
    """What only the service itself may write."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(App)
class AppAdmin(ReadOnlyAdmin):
    list_display = ["name", "public_id", "base_url", "email", "created_at"]
    search_fields = ["name", "public_id", "base_url", "email"]
    fields = ["public_id", "name", "base_url", "email", "website", "description", "max_in_flight", "created_at"]
    readonly_fields = ["public_id", "created_at"]

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return _ModelAdmin.has_change_permission(self, request, obj)


@admin.register(Repository)
class RepositoryAdmin(ReadOnlyAdmin):
    list_display = ["__str__", "url", "commit_sha", "consecutive_failures", "circuit_open_until", "last_checked_at"]
    search_fields = ["url", "public_id", "commit_sha"]


@admin.register(Watch)
class WatchAdmin(ReadOnlyAdmin):
    list_display = ["app", "repository", "status", "synced_at", "retry_count", "last_error"]
    list_filter = ["status"]
    list_select_related = ["app", "repository"]
    search_fields = ["app__name", "repository__url", "last_error"]
    exclude = ["token"]
