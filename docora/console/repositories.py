"""Repositories: what they are at, why they stand still, and the clone behind them."""

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, F, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from docora.console import bulk, disk
from docora.console.base import ConsoleAdmin, Fact
from docora.console.display import NOTHING, ago, badge, code, commit_link, lines, list_link, size, span
from docora.console.filters import ChoiceFilter
from docora.console.operations import Operation, TypedNameForm
from repositories import circuit, watches
from repositories.errors import hint_for
from repositories.models import Repository, Watch
from snapshots.models import Delivery


def circuit_is_open(repository: Repository) -> bool:
    return repository.circuit_open_until is not None


def _snapshot_now(repository: Repository, _: dict[str, Any]) -> str:
    watches.ask_for_snapshot(repository)
    return f"A snapshot of {repository} is queued."


def _reset_circuit(repository: Repository, _: dict[str, Any]) -> str:
    watches.reset_circuit(repository)
    return f"The circuit of {repository} is closed, and a snapshot is queued."


def _reclone(repository: Repository, _: dict[str, Any]) -> str:
    watches.reclone(repository)
    return f"{repository} will be cloned anew; the old clone stays until the new one is complete."


def _purge(repository: Repository, _: dict[str, Any]) -> str:
    watches.purge(repository)
    return f"{repository} is gone; its clone is being deleted."


def _impact(repository: Repository) -> list[str]:
    watches = repository.watches.select_related("app")
    names = ", ".join(watch.app.name for watch in watches[:10])
    return [
        f"{watches.count()} watches ({names})",
        f"{repository.snapshots.count()} snapshots and the log of deliveries",
        "the clone on disk",
    ]


_READABLE = Q(pk__in=Watch.objects.filter(access_denied_at=None).values("repository"))


class StateFilter(ChoiceFilter):
    title = parameter_name = "state"
    offered = {
        "healthy": ("Healthy", Q(consecutive_failures=0, circuit_open_until=None) & _READABLE),
        "unreadable": ("No token can read it", ~_READABLE),
        "failing": ("Failing", Q(consecutive_failures__gt=0)),
        "open": ("Circuit open", ~Q(circuit_open_until=None)),
        "repair": ("To be cloned anew", Q(needs_repair=True)),
    }


@admin.register(Repository)
class RepositoryAdmin(ConsoleAdmin):
    list_display = ["title", "state", "commit", "watchers", "failures", "checked"]
    search_fields = ["owner", "name", "public_id", "commit_sha"]
    search_help_text = "Owner, name, id or commit"
    ordering = ["owner", "name", "ref"]
    list_filter = [StateFilter, "is_private"]
    change_form_template = "docora/console/repository.html"
    actions = ["reset_circuits"]
    operations = [
        Operation(name="snapshot", label="Snapshot now", icon="photo_camera", run=_snapshot_now),
        Operation(
            name="reset_circuit",
            label="Reset circuit",
            icon="restart_alt",
            run=_reset_circuit,
            applies_to=lambda repository: circuit_is_open(repository) or repository.consecutive_failures > 0,
        ),
        Operation(
            name="reclone",
            label="Re-clone",
            icon="cloud_sync",
            run=_reclone,
            asks_first=True,
            explanation="The clone is made anew beside the old one and then swapped. Nothing is delivered again.",
        ),
        Operation(
            name="purge",
            label="Purge",
            icon="delete",
            run=_purge,
            form=TypedNameForm,
            impact=_impact,
            deletes=True,
            is_dangerous=True,
            explanation="This cannot be undone. With the repository goes:",
        ),
    ]

    @admin.action(description="Reset circuit", permissions=["operate"])
    def reset_circuits(self, request: HttpRequest, rows: QuerySet[Repository]) -> HttpResponse:
        return bulk.start(request, "reset_circuit", rows)

    def prepare(self, rows: list[Repository]) -> None:
        watches = Watch.objects.filter(repository__in=[row.pk for row in rows]).values_list("repository")
        watchers = dict(watches.annotate(Count("pk")))
        readable = set(watches.filter(access_denied_at=None).values_list("repository", flat=True))
        for row in rows:
            row.watchers = watchers.get(row.pk, 0)  # type: ignore[attr-defined]
            row.is_unreadable = row.watchers > 0 and row.pk not in readable  # type: ignore[attr-defined]

    @admin.display(description="Repository", ordering="owner")
    def title(self, repository: Repository) -> str:
        return str(repository)

    @admin.display(description="State")
    def state(self, repository: Repository) -> SafeString:
        return state_of(repository)

    @admin.display(description="Last commit")
    def commit(self, repository: Repository) -> object:
        return commit_link(repository, repository.commit_sha)

    @admin.display(description="Watchers")
    def watchers(self, repository: Repository) -> object:
        return list_link(Watch, repository.watchers, repository__id__exact=repository.pk)  # type: ignore[attr-defined]

    @admin.display(description="Failures in a row", ordering="consecutive_failures")
    def failures(self, repository: Repository) -> int:
        return repository.consecutive_failures

    @admin.display(description="Last look", ordering="last_checked_at")
    def checked(self, repository: Repository) -> object:
        return ago(repository.last_checked_at)

    def facts(self, repository: Repository) -> list[Fact]:
        self.prepare([repository])
        measured = disk.of(repository)
        return [
            ("State", lines(state_of(repository), repository.last_error)),
            ("What to do", hint_for(repository.last_error_code) or NOTHING),
            (
                "URL",
                format_html('<a class="dc-link" href="{0}" rel="noreferrer" target="_blank">{0}</a>', repository.url),
            ),
            ("Last commit", format_html("{} on {}", self.commit(repository), repository.branch or NOTHING)),
            ("Failures in a row", repository.consecutive_failures),
            ("Watchers", self.watchers(repository)),
            (
                "Size on disk",
                format_html("{}, measured {}", size(measured.size), ago(measured.at)) if measured else NOTHING,
            ),
            ("Last look", ago(repository.last_checked_at)),
            ("Next look", ago(repository.next_check_at)),
            ("Deliveries", list_link(Delivery, "Log of deliveries", watch__repository__id__exact=repository.pk)),
            ("Repository id", code(repository.public_id)),
            ("Visibility", "private" if repository.is_private else "public"),
        ]

    def panels(self, request: HttpRequest, repository: Repository) -> dict[str, object]:
        newest = repository.snapshots.order_by("-sequence")[:10]
        return {
            "snapshots": [(snapshot, commit_link(repository, snapshot.commit_sha)) for snapshot in newest],
            "watches": repository.watches.select_related("app").order_by(F("synced_at").desc(nulls_first=True))[:20],
        }


def state_of(repository: Repository) -> SafeString:
    if probe_at := circuit.next_probe(repository):
        left = probe_at - timezone.now()
        return badge(f"circuit open, probe in {span(left)}" if left > timedelta() else "circuit open, probe due", "bad")
    if repository.is_unreadable:  # type: ignore[attr-defined]
        return badge("no token can read it", "bad")
    if repository.needs_repair:
        return badge("to be cloned anew", "warn")
    if repository.consecutive_failures:
        return badge("failing", "warn")
    if not repository.last_checked_at:
        return badge("not looked at yet", "calm")
    return badge("healthy", "good")
