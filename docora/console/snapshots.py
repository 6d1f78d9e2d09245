"""Snapshots: what a repository contained at each commit, and how it differed from the one before."""

from django.contrib import admin
from django.http import HttpRequest
from django.utils.safestring import SafeString

from docora.console.base import BoundedPaginator, ConsoleAdmin, Fact
from docora.console.display import NOTHING, ago, badge, commit_link, lines, number, page_link, size
from snapshots.models import FileVersion, Snapshot

_SHOWN = 100


@admin.register(Snapshot)
class SnapshotAdmin(ConsoleAdmin):
    list_display = ["repository", "position", "commit", "changes", "all_files", "volume", "left", "taken"]
    list_select_related = ["repository"]
    search_fields = ["repository__owner", "repository__name", "commit_sha"]
    search_help_text = "Repository or commit"
    linked_by = {"repository__id__exact"}
    ordering = ["-pk"]
    paginator = BoundedPaginator
    change_form_template = "docora/console/snapshot.html"

    @admin.display(description="Commit")
    def commit(self, snapshot: Snapshot) -> object:
        return commit_link(snapshot.repository, snapshot.commit_sha)

    @admin.display(description="Changes")
    def changes(self, snapshot: Snapshot) -> str:
        return f"+{number(snapshot.created)} ~{number(snapshot.updated)} -{number(snapshot.deleted)}"

    @admin.display(description="Number", ordering="sequence")
    def position(self, snapshot: Snapshot) -> str:
        return number(snapshot.sequence)

    @admin.display(description="Files", ordering="files")
    def all_files(self, snapshot: Snapshot) -> str:
        return number(snapshot.files)

    @admin.display(description="Size", ordering="bytes")
    def volume(self, snapshot: Snapshot) -> str:
        return size(snapshot.bytes)

    @admin.display(description="Left out")
    def left(self, snapshot: Snapshot) -> SafeString | str:
        return badge(number(len(snapshot.left_out)), "warn") if snapshot.left_out else NOTHING

    @admin.display(description="Taken", ordering="taken_at")
    def taken(self, snapshot: Snapshot) -> object:
        return ago(snapshot.taken_at)

    def facts(self, snapshot: Snapshot) -> list[Fact]:
        return [
            ("Repository", page_link(snapshot.repository)),
            ("Commit", self.commit(snapshot)),
            ("Branch", snapshot.branch or NOTHING),
            ("Changes", self.changes(snapshot)),
            ("Files", number(snapshot.files)),
            ("Size", size(snapshot.bytes)),
            ("Left out", lines(*(f"{item['path']}: {item['reason']}" for item in snapshot.left_out[:50])) or NOTHING),
            ("Taken", ago(snapshot.taken_at)),
        ]

    def panels(self, request: HttpRequest, snapshot: Snapshot) -> dict[str, object]:
        """The paths that this snapshot brought or took away; a renewed one is in both."""
        # In the order of the indexes, and the files fetched beside: a first snapshot has every file. With a file to
        # begin at, PostgreSQL follows the index also without statistics; else it sorts all of them.
        versions = FileVersion.objects.filter(repository=snapshot.repository_id, file__gt=0).prefetch_related("file")
        written = list(versions.filter(since=snapshot.sequence).order_by("file_id")[:_SHOWN])
        ended = list(versions.filter(until=snapshot.sequence).order_by("file_id")[:_SHOWN])
        kept = {version.file_id for version in written}
        had = {version.file_id for version in ended}
        return {
            "written": [(version, "update" if version.file_id in had else "create") for version in written],
            "deleted": [version for version in ended if version.file_id not in kept],
            "shown": _SHOWN,
        }
