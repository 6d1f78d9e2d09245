"""Hooks of git hosts: what has arrived at each, what went wrong, and hooks for a whole host."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString

from docora.console.base import SECRETS, ConsoleAdmin, Fact
from docora.console.display import NOTHING, ago, badge, code, list_url, number, page_link
from docora.console.operations import Operation, PlainForm, Secrets, ask_for_new, redeem_ticket, show_secrets
from docora.console.states import Tone
from repositories import hooks
from repositories.models import Hook

_TONES: dict[str, Tone] = {"accepted": "good", "ignored": "calm", "refused": "bad"}


class HostForm(PlainForm):
    host = forms.CharField(
        max_length=255,
        help_text="As in DOCORA_GIT_HOSTS, such as github.com. The hook is for all that is watched there.",
    )


def _shown_once(hook: Hook, secret: str, title: str) -> Secrets:
    return Secrets(title=title, values=[("Path below this Docora's URL", _path(hook.public_id)), ("Secret", secret)])


def _change_secret(hook: Hook, _: dict[str, Any]) -> Secrets:
    return _shown_once(hook, hooks.change_secret(hook), "The new secret of the hook")


def _end(hook: Hook, _: dict[str, Any]) -> str:
    hooks.close(hook)
    return "The hook has ended. Planned looks go on."


def _path(public_id: str) -> str:
    return f"/hooks/{public_id}"


@admin.register(Hook)
class HookAdmin(ConsoleAdmin):
    list_display = ["title", "concerns", "last", "counts", "trouble"]
    search_fields = ["public_id", "host", "watch__app__name", "watch__repository__owner", "watch__repository__name"]
    search_help_text = "Id, host, app or repository"
    linked_by = {"watch__id__exact"}
    ordering = ["-pk"]
    list_before_template = "docora/console/github_app_hook.html"
    operations = [
        Operation(
            name="change_secret",
            label="Change secret",
            icon="sync_lock",
            run=_change_secret,
            makes_secrets=True,
            explanation="The two secrets before the new one count for one more day: time to change it at the git host.",
        ),
        Operation(
            name="end",
            label="End",
            icon="delete",
            run=_end,
            asks_first=True,
            deletes=True,
            is_dangerous=True,
            explanation="Whatever arrives at it from now on is refused. Changes are found by planned looks.",
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Hook]:
        rows = super().get_queryset(request).select_related("watch__app", "watch__repository")
        return rows.defer("secret", "previous_secrets", *(f"watch__{name}" for name in SECRETS))

    def prepare(self, rows: list[Hook]) -> None:
        logs = hooks.logs(hook.public_id for hook in rows)
        for hook in rows:
            hook.log = logs[hook.public_id]  # type: ignore[attr-defined]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("repositories.add_hook")

    @admin.display(description="Hook", ordering="public_id")
    def title(self, hook: Hook) -> str:
        return hook.public_id

    @admin.display(description="For")
    def concerns(self, hook: Hook) -> SafeString | str:
        return page_link(hook.watch) if hook.watch else f"every repository of {hook.host}"

    @admin.display(description="Last")
    def last(self, hook: Hook) -> SafeString | str:
        return ago(_log(hook).last_at)

    @admin.display(description="Accepted, ignored, refused")
    def counts(self, hook: Hook) -> str:
        return _counts(_log(hook))

    @admin.display(description="Last error")
    def trouble(self, hook: Hook) -> SafeString | str:
        log = _log(hook)
        return badge(log.last_error, "warn") if log.last_error else NOTHING

    def facts(self, hook: Hook) -> list[Fact]:
        self.prepare([hook])
        return [
            ("For", self.concerns(hook)),
            ("Path", code(_path(hook.public_id))),
            *_arrivals(_log(hook)),
            ("The secrets before it count until", ago(hook.previous_secret_until)),
            ("Made", ago(hook.created_at)),
            ("Secret", "Shown once when it is made, never again."),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The hook of the GitHub App has no row; it is shown above the list."""
        of_github_app = _facts_of_github_app() if hooks.has_github_app_hook() else []
        return super().changelist_view(request, {"of_github_app": of_github_app, **(extra_context or {})})

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """A hook for a whole host: its secret is in the answer to the form, and never again."""
        if not self.has_add_permission(request):
            raise PermissionDenied
        form = HostForm(request.POST or None)
        if form.is_valid() and (made := self._make(request, form)):
            return made
        explanation = (
            "The git host tells of pushes there, to every repository that is watched. The secret is shown once, after"
            " this form."
        )
        return ask_for_new(
            request, self, form, title="Add a hook for a host", explanation=explanation, button="Make the hook"
        )

    def _make(self, request: HttpRequest, form: HostForm) -> HttpResponse | None:
        if not redeem_ticket(request):
            messages.warning(request, "This form was sent already. The secret is not shown again.")
            return HttpResponseRedirect(list_url(Hook))
        try:
            hook, secret = hooks.open_for_host(form.cleaned_data["host"])
        except ValidationError as error:
            form.add_error("host", error)
            return None
        self.log_addition(request, hook, f"Made for {hook.host}")
        return show_secrets(request, self, hook, _shown_once(hook, secret, f"The hook for {hook.host}"))


def _log(hook: Hook) -> hooks.Log:
    log: hooks.Log = hook.log  # type: ignore[attr-defined]
    return log


def _facts_of_github_app() -> list[Fact]:
    log = hooks.logs([hooks.GITHUB_APP_HOOK])[hooks.GITHUB_APP_HOOK]
    return [
        ("Of the GitHub App", code(_path(hooks.GITHUB_APP_HOOK))),
        *((name, value) for name, value in _arrivals(log) if value != NOTHING),
        ("Secret", "DOCORA_GITHUB_APP_WEBHOOK_SECRET"),
    ]


def _arrivals(log: hooks.Log) -> list[Fact]:
    return [
        ("Last arrived", ago(log.last_at)),
        ("It was", log.last_event or NOTHING),
        ("Its id at the git host", code(log.last_delivery) if log.last_delivery else NOTHING),
        ("What became of it", badge(log.last_outcome, _TONES[log.last_outcome]) if log.last_outcome else NOTHING),
        ("Accepted, ignored, refused", _counts(log)),
        ("Last error", log.last_error or NOTHING),
        ("Last error was", ago(log.last_error_at)),
    ]


def _counts(log: hooks.Log) -> str:
    return ", ".join(map(number, (log.accepted, log.ignored, log.refused)))
