"""The operator's view of snapshots and of every attempt to tell an app something."""

from django.contrib import admin

from repositories.admin import ReadOnlyAdmin
from snapshots.models import Delivery, Parked, Snapshot


@admin.register(Snapshot)
class SnapshotAdmin(ReadOnlyAdmin):
    list_display = ["repository", "sequence", "commit_sha", "files", "created", "updated", "deleted", "taken_at"]
    list_select_related = ["repository"]
    search_fields = ["repository__url", "commit_sha"]


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ["attempted_at", "watch", "event", "path", "status", "milliseconds", "error"]
    list_select_related = ["watch__app", "watch__repository"]
    list_filter = ["event", "status"]
    search_fields = ["path", "message_id", "watch__app__name"]
    show_full_result_count = False


@admin.register(Parked)
class ParkedAdmin(ReadOnlyAdmin):
    list_display = ["parked_at", "watch", "file", "reason"]
    list_select_related = ["watch__app", "watch__repository", "file"]
    search_fields = ["file__path", "reason"]
