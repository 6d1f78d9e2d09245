"""Watches: who gets what, how far it is, why it stands still and what to do about it."""

from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from docora.console import bulk, cures, states
from docora.console.base import SECRETS, ConsoleAdmin, Fact
from docora.console.display import (
    NOTHING,
    ago,
    badge,
    commit_link,
    due,
    lines,
    list_link,
    number,
    page_link,
    plural,
    progress,
    size,
    state_badge,
)
from docora.console.filters import ChoiceFilter, StateFilter
from docora.console.operations import Operation, PlainForm
from docora.console.retries import retry
from docora.limits import seats
from repositories import circuit, github_app, watch_state, watches
from repositories.errors import AccessDenied, all_errors, hint_for
from repositories.models import Watch, WatchStatus
from repositories.selection import EVERYTHING, MOST_GLOBS, check_glob
from snapshots.acknowledged import count_acknowledged, count_parked
from snapshots.delivery import redelivery
from snapshots.models import Delivery, Parked, Snapshot


class TokenForm(PlainForm):
    token = forms.CharField(
        max_length=500,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="It is tried at once, stored encrypted and never shown.",
    )


def _globs(text: str) -> tuple[str, ...]:
    """One on each line."""
    globs = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(globs) > MOST_GLOBS:
        raise ValidationError(f"There can be {MOST_GLOBS} globs.")
    try:
        return tuple(check_glob(glob) for glob in globs)
    except ValueError as error:
        raise ValidationError(str(error)) from None


class FiltersForm(PlainForm):
    include = forms.CharField(
        required=False,
        widget=forms.Textarea(attrs={"rows": 4}),
        help_text="Only files that match one of these globs, one on each line, such as docs/**/*.md. Empty: all.",
    )
    exclude = forms.CharField(
        required=False, widget=forms.Textarea(attrs={"rows": 4}), help_text="No files that match one of these."
    )
    max_file_size = forms.IntegerField(
        required=False, min_value=1, label="Largest file, in bytes", help_text="Empty: no limit of its own."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        chosen = self.row.selection
        self.initial = {
            "include": "\n".join(chosen.include),
            "exclude": "\n".join(chosen.exclude),
            "max_file_size": chosen.max_file_size,
        }

    def clean_include(self) -> tuple[str, ...]:
        return _globs(self.cleaned_data["include"])

    def clean_exclude(self) -> tuple[str, ...]:
        return _globs(self.cleaned_data["exclude"])


class MomentForm(PlainForm):
    moment = forms.DateTimeField(
        label="Since (UTC)",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        help_text="Everything that was sent to the app after this time is sent again.",
    )

    def clean_moment(self) -> datetime:
        moment: datetime = self.cleaned_data["moment"]
        if moment > timezone.now():
            raise ValidationError("This time has yet to come.")
        return moment


def _retry(watch: Watch, _: dict[str, Any]) -> str:
    retry(watch)
    return f"{watch.repository} is being delivered to {watch.app.name} again, from where it stopped."


def _resync(watch: Watch, _: dict[str, Any]) -> str:
    redelivery.resync(watch)
    return f"Every file of {watch.repository} is being sent to {watch.app.name} again."


def _retry_parked(watch: Watch, _: dict[str, Any]) -> str:
    redelivery.retry_parked(watch)
    return f"The parked files of {watch.repository} are being sent to {watch.app.name} again."


def _change_token(watch: Watch, data: dict[str, Any]) -> str:
    with seats.calling(watch.app):
        watches.change_token(watch.app, watch.repository.public_id, data["token"])
    return "The new token can read the repository and is used from now on."


def _redeliver_since(watch: Watch, data: dict[str, Any]) -> str:
    redelivery.redeliver_since(watch, data["moment"])
    return f"What {watch.app.name} got since {data['moment']:%Y-%m-%d %H:%M} is being sent again."


def _edit_filters(watch: Watch, data: dict[str, Any]) -> str:
    watches.change_options(watch.app, watch.repository.public_id, **data)
    return f"{watch.app.name} is being told the difference."


def _unwatch(watch: Watch, _: dict[str, Any]) -> str:
    watches.unwatch(watch.app, watch.repository.public_id)
    return f"{watch.app.name} does not watch {watch.repository} any more."


def _impact_of_unwatching(watch: Watch) -> list[str]:
    is_last = not watch.repository.watches.exclude(pk=watch.pk).exists()
    clone = "" if watches.shares_clone(watch.repository) else " and its clone"
    return [
        f"what Docora knows of {plural(watch.delivered.count(), 'delivered file')}; the app itself keeps them",
        "the log of its deliveries",
        *([f"the repository{clone}, because nobody else watches it"] if is_last else []),
    ]


class WatchStateFilter(StateFilter):
    states = states.WATCH


class TroubleFilter(ChoiceFilter):
    title = parameter_name = "trouble"
    offered = {
        "failing": ("Failing", watch_state.failing() & Q(app__disabled_at=None)),
        "disabled": ("App disabled", Q(app__disabled_at__isnull=False)),
        "parked": ("Has parked files", Q(pk__in=Parked.objects.values("watch"))),
    }


_NOTHING_TO_READ_WITH = (
    "The watch has no token. Store one: change it here. Or see to the operator's GitHub App: is it installed there, and"
    " has this app a grant?"
)
_CODES = sorted({error.code for error in all_errors() if error.hint})


class ReasonFilter(ChoiceFilter):
    title = parameter_name = "reason"
    offered = {code: (code.replace("-", " "), Q(last_error_code=code)) for code in _CODES}


@admin.register(Watch)
class WatchAdmin(ConsoleAdmin):
    list_display = ["title", "state", "files_delivered", "reason", "synced"]
    list_filter = [WatchStateFilter, TroubleFilter, ReasonFilter]
    search_fields = ["app__name", "app__public_id", "repository__owner", "repository__name", "repository__public_id"]
    search_help_text = "App or repository, by name or id"
    linked_by = {"app__id__exact", "repository__id__exact"}
    ordering = ["-pk"]
    change_form_template = "docora/console/watch.html"
    actions = ["retry_selected", "resync_selected"]
    operations = [
        Operation(
            name="retry",
            label="Retry",
            icon="replay",
            run=_retry,
            applies_to=lambda watch: watch.status != WatchStatus.SYNCED,
            sends=True,
        ),
        Operation(
            name="retry_parked",
            label="Retry parked files",
            icon="unarchive",
            run=_retry_parked,
            applies_to=lambda watch: watch.parked.exists(),
            sends=True,
        ),
        Operation(
            name="resync",
            label="Resync",
            icon="sync",
            run=_resync,
            sends=True,
            asks_first=True,
            explanation="Every file is sent to the app again, also those that it has.",
        ),
        Operation(
            name="redeliver_since",
            label="Redeliver since…",
            icon="history",
            run=_redeliver_since,
            form=MomentForm,
            sends=True,
        ),
        Operation(
            name="change_token",
            label="Change token",
            icon="key",
            run=_change_token,
            form=TokenForm,
            explanation="What was delivered stays delivered; the errors of the watch are cleared.",
        ),
        Operation(
            name="edit_filters",
            label="Edit filters",
            icon="filter_alt",
            run=_edit_filters,
            form=FiltersForm,
            sends=True,
            explanation="Files that are not chosen any more are sent as deletes, those chosen anew as creates.",
        ),
        Operation(
            name="unwatch",
            label="Unwatch",
            icon="visibility_off",
            run=_unwatch,
            impact=_impact_of_unwatching,
            asks_first=True,
            deletes=True,
            is_dangerous=True,
            explanation="The app is told nothing more of this repository. This cannot be undone. With the watch goes:",
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Watch]:
        return super().get_queryset(request).select_related("app", "repository").defer(*SECRETS)

    def prepare(self, rows: list[Watch]) -> None:
        states.WATCH.attach(rows)
        acknowledged, parked = count_acknowledged(rows), count_parked(rows)
        totals = _totals({watch.repository_id for watch in rows})
        for watch in rows:
            watch.total = totals.get(watch.repository_id, 0)  # type: ignore[attr-defined]
            watch.done = acknowledged[watch.pk]  # type: ignore[attr-defined]
            watch.refused = parked.get(watch.pk, 0)  # type: ignore[attr-defined]

    @admin.display(description="Watch", ordering="app__name")
    def title(self, watch: Watch) -> SafeString:
        return format_html("<span><b>{}</b> ← {}</span>", watch.app.name, watch.repository)

    @admin.display(description="State", ordering="status")
    def state(self, watch: Watch) -> SafeString:
        return state_badge(watch)

    @admin.display(description="Files delivered")
    def files_delivered(self, watch: Watch) -> SafeString | str:
        done, total = watch.done, watch.total  # type: ignore[attr-defined]
        is_between_commits = watch_state.is_between_commits(watch)
        if refused := watch.refused:  # type: ignore[attr-defined]
            is_share = watch.selection == EVERYTHING and not is_between_commits
            wanted = f" of {number(total)}" if is_share else ""
            return badge(f"{number(done)}{wanted}, {number(refused)} parked", "warn")
        if watch.status == WatchStatus.SYNCED:
            return number(done)
        if not total:
            return "not counted yet"
        if is_between_commits:  # which of them changed is not known before they are compared
            return f"{number(done)}, not yet all as in the newest commit"
        # How many files a selection takes is not known before they are all compared.
        return progress(done, total) if watch.selection == EVERYTHING else f"{number(done)} so far"

    @admin.display(description="Reason")
    def reason(self, watch: Watch) -> str:
        return states.reason_of(watch)[1][:120] or NOTHING

    @admin.display(description="In sync", ordering="synced_at")
    def synced(self, watch: Watch) -> SafeString | str:
        return _but_for_parked(watch, ago(watch.synced_at)) if watch.synced_at else NOTHING

    def facts(self, watch: Watch) -> list[Fact]:
        self.prepare([watch])
        return [
            ("State", lines(state_badge(watch), states.reason_of(watch)[1])),
            ("Files delivered", self.files_delivered(watch)),
            ("App", page_link(watch.app, watch.app.name)),
            ("Repository", page_link(watch.repository)),
            ("The app has", _commit_of(watch)),
            ("In sync", self.synced(watch)),
            ("Attempts in a row", watch.retry_count),
            ("Next attempt", NOTHING if watch.app.disabled_at else due(watch.retry_at)),
            ("Next look at the repository", _next_look(watch)),
            ("Files wanted", _selection(watch)),
            ("Token", _token_of(watch)),
            ("Token accepted", ago(watch.access_proven_at)),
            ("Token refused", ago(watch.access_denied_at)),
            ("Deliveries", list_link(Delivery, "Log of deliveries", watch__id__exact=watch.pk)),
            ("Watching", ago(watch.created_at)),
        ]

    def cure(self, watch: Watch, *, may_operate: bool) -> SafeString | str:
        code, _ = states.reason_of(watch)
        text = hint_for(code) or watch.shown_state.cure  # type: ignore[attr-defined]
        if code == AccessDenied.code and not watch.token:
            text = _NOTHING_TO_READ_WITH
        return cures.linked(text, cures.of_watch(watch), may_operate=may_operate)

    def panels(self, request: HttpRequest, watch: Watch) -> dict[str, object]:
        return {
            "parked": watch.parked.select_related("file").order_by("-parked_at")[:20],
            "deliveries": watch.deliveries.order_by("-attempted_at")[:10],
        }

    @admin.action(description="Retry", permissions=["operate"])
    def retry_selected(self, request: HttpRequest, watches: QuerySet[Watch]) -> HttpResponse:
        return bulk.start(request, "retry", watches)

    @admin.action(description="Resync: send every file again", permissions=["operate"])
    def resync_selected(self, request: HttpRequest, watches: QuerySet[Watch]) -> HttpResponse:
        explanation = "Every file is sent to the apps again, also those that they have."
        return bulk.confirm(request, "resync", watches, explanation)


def _but_for_parked(watch: Watch, shown: SafeString | str) -> SafeString | str:
    refused = watch.refused  # type: ignore[attr-defined]
    return format_html("<span>{} but for {}</span>", shown, plural(refused, "parked file")) if refused else shown


def _commit_of(watch: Watch) -> SafeString | str:
    """The last commit that was told to its end. The app lacks what its endpoint refused: that is named beside it."""
    if not watch.synced_commit:
        return NOTHING
    commit = commit_link(watch.repository, watch.synced_commit)
    is_empty = watch.refused and not watch.done  # type: ignore[attr-defined]
    return format_html("no file of {}", commit) if is_empty else _but_for_parked(watch, commit)


def _token_of(watch: Watch) -> str:
    if watch.token:
        return "stored, never shown"
    if github_app.granted(watch.repository.remote, [watch.app_id]):
        return "none: the operator's GitHub App may read it"
    return "none" if watch.repository.is_private else "none: a public repository"


def _next_look(watch: Watch) -> SafeString | str:
    """Shown only for a failed watch, which waits for it."""
    if watch.status != WatchStatus.FAILED or watch.app.disabled_at:
        return NOTHING
    return due(circuit.next_probe(watch.repository) or watch.repository.next_check_at)


def _selection(watch: Watch) -> str:
    chosen = watch.selection
    parts = [
        f"only {', '.join(chosen.include)}" if chosen.include else "",
        f"without {', '.join(chosen.exclude)}" if chosen.exclude else "",
        f"up to {size(chosen.max_file_size)}" if chosen.max_file_size else "",
    ]
    return "; ".join(filter(None, parts)) or "all"


def _totals(repository_ids: set[int]) -> dict[int, int]:
    """How many files the newest snapshot of each repository has."""
    newest = Snapshot.objects.filter(repository=OuterRef("repository")).order_by("-sequence").values("pk")[:1]
    rows = Snapshot.objects.filter(repository__in=repository_ids, pk=Subquery(newest))
    return dict(rows.values_list("repository", "files"))
