"""Apps: onboard, edit, rotate what is secret, enable, disable, ping, delete."""

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Model
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from docora.console import cures, latency, states, statistics
from docora.console.base import SECRETS, ConsoleAdmin, Fact
from docora.console.display import (
    NOTHING,
    ago,
    badge,
    code,
    due,
    list_link,
    list_url,
    milliseconds,
    number,
    percent,
    plural,
    state_badge,
)
from docora.console.filters import StateFilter
from docora.console.operations import (
    Operation,
    PlainForm,
    Secrets,
    TypedNameForm,
    ask_for_new,
    redeem_ticket,
    show_secrets,
)
from docora.limits import seats
from repositories import accounts, watch_state
from repositories.errors import DocoraError
from repositories.models import App, OptionalEvent, Watch
from snapshots.delivery.notices import ping
from snapshots.models import Delivery

if TYPE_CHECKING:
    _AppForm = forms.ModelForm[App]
else:
    _AppForm = forms.ModelForm


def _events() -> forms.MultipleChoiceField:
    return forms.MultipleChoiceField(
        label="Optional events",
        required=False,
        choices=OptionalEvent.choices,
        widget=forms.CheckboxSelectMultiple,
        help_text="What the app is told beside its files, because it wants to know.",
    )


_LABELS = {"base_url": "Base URL", "may_change_base_url": "May change its base URL"}


class EditForm(_AppForm):
    events = _events()

    class Meta:
        model = App
        fields = ["name"]  # the admin chooses the others
        labels = _LABELS


class OnboardForm(_AppForm):
    events = _events()
    webhook_key = forms.CharField(
        required=False,
        min_length=16,
        max_length=500,
        strip=False,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
        help_text="The client's own key, 16 to 500 characters. Leave it empty and Docora makes one.",
    )

    class Meta:
        model = App
        fields = ["name", "base_url", "email", "website", "description", "events", "may_change_base_url"]
        labels = _LABELS
        widgets = {"description": forms.Textarea(attrs={"rows": 3})}


class OverlapForm(PlainForm):
    hours = forms.IntegerField(
        label="Overlap in hours",
        initial=24,
        min_value=0,
        max_value=24 * 30,
        help_text="For so long, webhooks are signed with both keys.",
    )


class TokenOverlapForm(OverlapForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["hours"].help_text = "For so long, the old token works too. 0 ends every earlier token at once."


class ReasonForm(PlainForm):
    reason = forms.CharField(max_length=200, initial="Disabled by an operator", help_text="The app's page shows it.")


def is_disabled(app: App) -> bool:
    return app.disabled_at is not None


def _rotate_bearer(app: App, data: dict[str, Any]) -> Secrets:
    token = accounts.rotate_bearer_token(app, overlap=timedelta(hours=data["hours"]))
    return Secrets(title="The new bearer token", values=[("App id", app.public_id), ("Bearer token", token)])


def _rotate_key(app: App, data: dict[str, Any]) -> Secrets:
    key = accounts.rotate_webhook_key(app, overlap=timedelta(hours=data["hours"]))
    return Secrets(title="The new webhook key", values=[("App id", app.public_id), ("Webhook key", key)])


def _enable(app: App, _: dict[str, Any]) -> str:
    accounts.enable_app(app)
    return f"{app.name} is enabled. What changed meanwhile is on its way."


def _disable(app: App, data: dict[str, Any]) -> str:
    accounts.disable_app(app, data["reason"])
    url = reverse("admin:repositories_app_enable", args=[app.pk])
    sentence = '{} is disabled. Nothing is sent to it until it is <a class="dc-link" href="{}">enabled</a> again.'
    return format_html(sentence, app.name, url)


def _ping(app: App, _: dict[str, Any]) -> str:
    with seats.pinging(app):
        answer = ping(app)
    if not answer.accepted:
        raise DocoraError(f"the endpoint did not accept it: {answer.error} (after {milliseconds(answer.milliseconds)})")
    return f"The endpoint answered {answer.status} within {milliseconds(answer.milliseconds)}."


def _impact(app: App) -> Sequence[str]:
    impact = accounts.impact_of_deleting(app)
    orphans = f"{plural(len(impact.orphans), 'repository', 'repositories')} that nobody else watches"
    named = f": {', '.join(impact.orphans[:10])}{'…' if len(impact.orphans) > 10 else ''}" if impact.orphans else ""
    return [
        f"{plural(impact.watches, 'watch', 'watches')}, with the log of deliveries",
        orphans + named,
        f"what Docora knows of {plural(impact.files, 'delivered file')}; the app itself keeps them",
    ]


def _delete(app: App, _: dict[str, Any]) -> str:
    name = app.name
    accounts.delete_app(app)
    return f"{name} is deleted."


class AppStateFilter(StateFilter):
    states = states.APP


@admin.register(App)
class AppAdmin(ConsoleAdmin):
    list_display = ["name", "state", "watches_shown", "success", "endpoint", "created"]
    search_fields = ["name", "public_id", "base_url", "email"]
    search_help_text = "Name, id, URL or e-mail"
    ordering = ["name"]
    list_filter = [AppStateFilter]
    change_form_template = "docora/console/app.html"
    fields = ["name", "base_url", "email", "website", "description", "max_in_flight", "events", "may_change_base_url"]
    form = EditForm
    operations = [
        Operation(name="ping", label="Ping", icon="network_ping", run=_ping),
        Operation(
            name="rotate_bearer",
            label="Rotate bearer token",
            icon="key",
            run=_rotate_bearer,
            form=TokenOverlapForm,
            makes_secrets=True,
            explanation="The app gets a new bearer token. During the overlap the old one works too.",
        ),
        Operation(
            name="rotate_key",
            label="Rotate webhook key",
            icon="sync_lock",
            run=_rotate_key,
            form=OverlapForm,
            makes_secrets=True,
            explanation="Webhooks are signed with a new key. During the overlap they carry both signatures.",
        ),
        Operation(
            name="enable",
            label="Enable",
            icon="play_circle",
            run=_enable,
            applies_to=is_disabled,
        ),
        Operation(
            name="disable",
            label="Disable",
            icon="pause_circle",
            run=_disable,
            form=ReasonForm,
            applies_to=lambda app: not is_disabled(app),
            explanation="Nothing is sent to the app until it is enabled again. Its watches stay.",
        ),
        Operation(
            name="remove",
            label="Delete",
            icon="delete",
            run=_delete,
            form=TypedNameForm,
            impact=_impact,
            deletes=True,
            is_dangerous=True,
            explanation="This cannot be undone. With the app goes:",
        ),
    ]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("repositories.add_app")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_operate_permission(request)

    def save_model(self, request: HttpRequest, obj: App, form: Any, change: bool) -> None:
        """A service of its own changes the base URL: deliveries under way must go on at the new one."""
        base_url = obj.base_url
        if change:
            obj.base_url = App.objects.values_list("base_url", flat=True).get(pk=obj.pk)
        super().save_model(request, obj, form, change)
        accounts.change_base_url(obj, base_url)

    def prepare(self, rows: list[App]) -> None:
        states.APP.attach(rows)
        ids = [app.pk for app in rows]
        failed = Count("pk", filter=watch_state.failing())
        watches = Watch.objects.filter(app__in=ids).values_list("app").annotate(total=Count("pk"), failed=failed)
        counted = {app_id: (total, broken) for app_id, total, broken in watches}
        tallies = statistics.last_day_by_app(ids)
        for app in rows:
            app.counted = counted.get(app.pk, (0, 0))  # type: ignore[attr-defined]
            app.tally = tallies[app.pk]  # type: ignore[attr-defined]

    @admin.display(description="State")
    def state(self, app: App) -> SafeString:
        return state_badge(app)

    @admin.display(description="Watches")
    def watches_shown(self, app: App) -> SafeString | str:
        total, failed = app.counted  # type: ignore[attr-defined]
        shown = f"{number(total)} ({number(failed)} failed)" if failed else number(total)
        return list_link(Watch, shown, app__id__exact=app.pk) if total else shown

    @admin.display(description="Accepted, 24 h")
    def success(self, app: App) -> SafeString | str:
        return rate(app.tally)  # type: ignore[attr-defined]

    @admin.display(description="Base URL", ordering="base_url")
    def endpoint(self, app: App) -> str:
        return app.base_url

    @admin.display(description="Onboarded", ordering="created_at")
    def created(self, app: App) -> object:
        return ago(app.created_at)

    def facts(self, app: App) -> list[Fact]:
        self.prepare([app])
        return [
            ("State", self.state(app)),
            ("Reason", app.disabled_reason or NOTHING),
            ("Failing", ago(app.failing_since)),
            ("In the slow lane", ago(app.slow_since)),
            ("Sent to again", NOTHING if is_disabled(app) else due(app.resting_until)),
            ("Signed with old keys too, until", ago(app.previous_key_until)),
            ("Old bearer tokens work until", ago(accounts.previous_bearer_until(app))),
            ("App id", code(app.public_id)),
            ("Watches", self.watches_shown(app)),
            ("Accepted in the last day", self.success(app)),
            ("From notice to acknowledgement", latency.of_app(app).text),
            ("Optional events", ", ".join(app.events) or NOTHING),
            ("Deliveries", list_link(Delivery, "Log of deliveries", watch__app__id__exact=app.pk)),
            ("Onboarded", ago(app.created_at)),
            ("Bearer token, webhook key", "Shown once when they are made, never again."),
        ]

    def panels(self, request: HttpRequest, app: App) -> dict[str, object]:
        watches = app.watches.select_related("app", "repository").defer(*SECRETS).order_by("status", "-synced_at")[:20]
        states.WATCH.attach(watches)
        return {"watches": watches}

    def cure(self, app: App, *, may_operate: bool) -> SafeString | str:
        text = app.shown_state.cure  # type: ignore[attr-defined]
        return cures.linked(text, cures.Subject(app=app), may_operate=may_operate)

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Onboarding: what the app needs to know is in the answer to the form, and never again."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = OnboardForm(request.POST or None)
        if form.is_valid():
            if not redeem_ticket(request):
                messages.warning(request, "This form was sent already. The credentials are not shown again.")
                return HttpResponseRedirect(list_url(App))
            return self._onboard(request, form)
        explanation = "The app's id, its bearer token and its webhook key are shown once, after this form."
        return ask_for_new(request, self, form, title="Onboard an app", explanation=explanation, button="Onboard")

    def _onboard(self, request: HttpRequest, form: OnboardForm) -> HttpResponse:
        credentials = accounts.onboard(**form.cleaned_data)
        app = App.objects.get(public_id=credentials.app_id)
        self.log_addition(request, app, "Onboarded")
        shown = Secrets(
            title=f"{app.name} is onboarded",
            values=[
                ("App id", credentials.app_id),
                ("Bearer token", credentials.bearer_token),
                ("Webhook key", credentials.webhook_key),
            ],
        )
        return show_secrets(request, self, app, shown)


def rate(tally: statistics.Tally) -> SafeString | str:
    share = tally.success_rate
    if share is None:
        return NOTHING
    return badge(
        f"{percent(share)} of {number(tally.total)}", "good" if share >= 99 else "warn" if share >= 90 else "bad"
    )
