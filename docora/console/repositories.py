"""Repositories: what they are at, why they stand still, and the clone behind them."""

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, F, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from docora.console import bulk, cures, disk, states
from docora.console.base import SECRETS, ConsoleAdmin, Fact
from docora.console.display import (
    NOTHING,
    ago,
    badge,
    code,
    commit_link,
    due,
    lines,
    list_link,
    number,
    plural,
    size,
    span,
    state_badge,
)
from docora.console.filters import StateFilter
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
    clone = "stays, because another ref is watched" if watches.shares_clone(repository) else "is being deleted"
    watches.purge(repository)
    return f"{repository} is gone; its clone {clone}."


def _impact(repository: Repository) -> list[str]:
    rows = repository.watches.select_related("app")
    names = ", ".join(watch.app.name for watch in rows[:10])
    return [
        f"{plural(rows.count(), 'watch', 'watches')} ({names})",
        f"{plural(repository.snapshots.count(), 'snapshot')} and the log of deliveries",
        *([] if watches.shares_clone(repository) else ["the clone on disk"]),
    ]


class RepositoryStateFilter(StateFilter):
    states = states.REPOSITORY


@admin.register(Repository)
class RepositoryAdmin(ConsoleAdmin):
    list_display = ["title", "state", "commit", "watchers", "failures", "checked"]
    search_fields = ["owner", "name", "public_id", "commit_sha"]
    search_help_text = "Owner, name, id or commit"
    ordering = ["owner", "name", "ref"]
    list_filter = [RepositoryStateFilter, "is_private"]
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
        states.REPOSITORY.attach(rows)
        watches = Watch.objects.filter(repository__in=[row.pk for row in rows]).values_list("repository")
        watchers = dict(watches.annotate(Count("pk")))
        for row in rows:
            row.watchers = watchers.get(row.pk, 0)  # type: ignore[attr-defined]

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
        watchers = number(repository.watchers)  # type: ignore[attr-defined]
        return list_link(Watch, watchers, repository__id__exact=repository.pk)

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
            ("Next look", due(circuit.next_probe(repository) or repository.next_check_at)),
            ("Deliveries", list_link(Delivery, "Log of deliveries", watch__repository__id__exact=repository.pk)),
            ("Repository id", code(repository.public_id)),
            ("Visibility", "private" if repository.is_private else "public"),
        ]

    def cure(self, repository: Repository, *, may_operate: bool) -> SafeString | str:
        text = hint_for(repository.last_error_code) or repository.shown_state.cure  # type: ignore[attr-defined]
        return cures.linked(text, cures.Subject(repository=repository), may_operate=may_operate)

    def panels(self, request: HttpRequest, repository: Repository) -> dict[str, object]:
        newest = repository.snapshots.order_by("-sequence")[:10]
        watches = repository.watches.select_related("app").defer(*SECRETS)
        shown = watches.order_by(F("synced_at").desc(nulls_first=True))[:20]
        states.WATCH.attach(shown)
        return {
            "snapshots": [(snapshot, commit_link(repository, snapshot.commit_sha)) for snapshot in newest],
            "watches": shown,
        }


def state_of(repository: Repository) -> SafeString:
    state: states.State = repository.shown_state  # type: ignore[attr-defined]
    probe_at = circuit.next_probe(repository)
    if state.name != "open" or probe_at is None:
        return state_badge(repository)
    left = probe_at - timezone.now()
    probe = f"probe in {span(left)}" if left > timedelta() else "probe due"
    return badge(f"{state.label}, {probe}", state.tone)
