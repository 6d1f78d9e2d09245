"""One operation on one row: a button, a confirmation where it is wanted, the call of a service, a line in the log.

Operations run on POST alone. One that makes a secret answers with it at once, never to be shown again: its form
carries a ticket that is good for one use, so a reloaded page makes no second secret.
"""

import copy
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache

from docora.console import cures
from docora.console.display import list_url, row_url, title_of
from repositories.errors import DocoraError
from repositories.models import App, Watch

if TYPE_CHECKING:
    from docora.console.base import ConsoleAdmin

_TICKETS = "console_tickets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """What a person must copy now."""

    title: str
    values: Sequence[tuple[str, str]]


class PlainForm(forms.Form):
    """An operation that asks nothing."""

    def __init__(self, *args: Any, row: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.row = row


class TypedNameForm(PlainForm):
    """For what cannot be undone: the name must be typed, so that it is read."""

    name = forms.CharField(widget=forms.TextInput(attrs={"autocomplete": "off"}))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["name"].label = f"Type {title_of(self.row)} to go on"

    def clean_name(self) -> str:
        name = title_of(self.row)
        if self.cleaned_data["name"] != name:
            raise ValidationError(f"This is not the name: {name}")
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """`run` gets the row and the cleaned data of the form; it returns a sentence, or secrets to show once."""

    name: str
    label: str
    icon: str
    run: Callable[[Any, dict[str, Any]], str | Secrets]
    explanation: str = ""
    form: type[PlainForm] = PlainForm
    applies_to: Callable[[Any], bool] = lambda _: True
    # It has something sent to the app, so it is not offered while the app is disabled.
    sends: bool = False
    impact: Callable[[Any], Sequence[str]] = lambda _: ()
    asks_first: bool = False
    makes_secrets: bool = False
    deletes: bool = False
    is_dangerous: bool = False

    @property
    def has_page(self) -> bool:
        return self.asks_first or self.makes_secrets or self.form is not PlainForm

    def is_allowed(self, admin: "ConsoleAdmin", request: HttpRequest) -> bool:
        if self.deletes:
            return request.user.has_perm(f"{admin.opts.app_label}.delete_{admin.opts.model_name}")
        return admin.has_operate_permission(request)


def buttons_of(admin: "ConsoleAdmin", request: HttpRequest, row: Any) -> Iterator[tuple[Operation, str]]:
    """The operations of a row, with their URLs. What belongs to a disabled app has one button: it enables the app."""
    app = disabled_app_of(row)
    if app is not None:
        admin, row = cast("ConsoleAdmin", admin.admin_site.get_model_admin(App)), app
    for operation in admin.operations:
        is_wanted = app is None or operation.name == "enable"
        if is_wanted and operation.is_allowed(admin, request) and operation.applies_to(row):
            yield operation, url_of(operation, row)


def disabled_app_of(row: Any) -> App | None:
    """The app that keeps this row waiting: of a watch, or of what belongs to one."""
    watch = row if isinstance(row, Watch) else getattr(row, "watch", None)
    return watch.app if watch is not None and watch.app.disabled_at else None


def url_of(operation: Operation, row: Any) -> str:
    return reverse(f"admin:{_url_name(row._meta, operation)}", args=[row.pk])


def issue_ticket(request: HttpRequest) -> str:
    ticket = secrets.token_urlsafe(12)
    # A few are kept, for forms that are open in several tabs.
    request.session[_TICKETS] = [*request.session.get(_TICKETS, []), ticket][-20:]
    return ticket


def redeem_ticket(request: HttpRequest) -> bool:
    """True once for each ticket."""
    tickets = request.session.get(_TICKETS, [])
    ticket = request.POST.get("ticket", "")
    if ticket not in tickets:
        return False
    request.session[_TICKETS] = [other for other in tickets if other != ticket]
    return True


def write_log(request: HttpRequest, rows: Sequence[Any], message: str, *, deleted: bool = False) -> None:
    LogEntry.objects.log_actions(request.user.pk or 0, rows, DELETION if deleted else CHANGE, message)


def show_secrets(request: HttpRequest, admin: "ConsoleAdmin", row: Any, shown: Secrets) -> HttpResponse:
    context = {**admin.admin_site.each_context(request), "title": shown.title, "secrets": shown, "row": row}
    context |= {"opts": admin.opts, "back": row_url(row)}
    return TemplateResponse(request, "docora/console/secrets.html", context, headers={"Cache-Control": "no-store"})


def ask_for_new(
    request: HttpRequest, admin: "ConsoleAdmin", form: forms.BaseForm, *, title: str, explanation: str, button: str
) -> HttpResponse:
    """The page of a form that makes a row, and with it secrets."""
    context = {
        **admin.admin_site.each_context(request),
        "title": title,
        "opts": admin.opts,
        "operation": {"explanation": explanation, "label": button},
        "form": form,
        "ticket": issue_ticket(request),
        "back": list_url(admin.model),
    }
    return TemplateResponse(request, "docora/console/operation.html", context)


class OperationView:
    """The page that asks for one operation, and the POST that runs it."""

    def __init__(self, admin: "ConsoleAdmin", operation: Operation) -> None:
        self._admin = admin
        self._operation = operation

    def pattern(self) -> URLPattern:
        view = self._admin.admin_site.admin_view(never_cache(self._answer))
        name = _url_name(self._admin.opts, self._operation)
        return path(f"<path:object_id>/do/{self._operation.name}/", view, name=name)

    def _answer(self, request: HttpRequest, object_id: str) -> HttpResponse:
        if not self._operation.is_allowed(self._admin, request):
            raise PermissionDenied
        row = self._admin.get_object(request, unquote(object_id))
        if row is None:
            raise Http404("It is gone.")
        if refusal := self._refusal(row):
            messages.warning(request, format_html("{}: {}", self._operation.label, refusal))
            return self._leave(request, row)
        form = self._operation.form(request.POST if request.method == "POST" else None, row=row)
        if not form.is_valid():
            return self._ask(request, row, form)
        if self._operation.makes_secrets and not redeem_ticket(request):
            messages.warning(request, "This form was sent already. What it made is not shown again.")
            return self._leave(request, row)
        return self._run(request, row, form)

    def _refusal(self, row: Any) -> str:
        app = disabled_app_of(row)
        if self._operation.sends and app:
            sentence = '{} is disabled: nothing is sent until it is <a class="dc-link" href="{}">enabled</a>.'
            return format_html(sentence, app.name, reverse("admin:repositories_app_enable", args=[app.pk]))
        return "" if self._operation.applies_to(row) else "there is nothing to do any more."

    def _run(self, request: HttpRequest, row: Any, form: PlainForm) -> HttpResponse:
        named = copy.copy(row)  # a deletion takes the key from the row, but not from what names it in the log
        try:
            outcome = self._operation.run(row, form.cleaned_data)
        except ValidationError as error:
            form.add_error(None, error)
            return self._ask(request, row, form)
        except DocoraError as error:
            write_log(request, [named], f"{self._operation.label} failed: {error}")
            hint = cures.linked(error.hint, cures.of(named), may_operate=True)
            cure = hint if cures.has_link(hint) else ""  # the others speak of what is tried again by itself
            messages.error(request, format_html("{}: {} {}", self._operation.label, error, cure))
            return self._leave(request, named, failed=True)
        write_log(request, [named], self._operation.label, deleted=self._operation.deletes)
        if isinstance(outcome, Secrets):
            return show_secrets(request, self._admin, row, outcome)
        messages.success(request, outcome)
        return self._leave(request, named)

    def _ask(self, request: HttpRequest, row: Any, form: PlainForm) -> HttpResponse:
        operation = self._operation
        context = {
            **self._admin.admin_site.each_context(request),
            "title": operation.label,
            "opts": self._admin.opts,
            "operation": operation,
            "impact": operation.impact(row),
            "row": row,
            "form": form,
            "ticket": issue_ticket(request) if operation.makes_secrets else "",
            "back": row_url(row),
        }
        return TemplateResponse(request, "docora/console/operation.html", context)

    def _leave(self, request: HttpRequest, row: Any, *, failed: bool = False) -> HttpResponse:
        wanted = request.POST.get("next", "")
        if url_has_allowed_host_and_scheme(wanted, allowed_hosts={request.get_host()}, require_https=False):
            return HttpResponseRedirect(wanted)
        if self._operation.deletes and not failed:
            return HttpResponseRedirect(list_url(type(row)))
        return HttpResponseRedirect(row_url(row))


def _url_name(options: Any, operation: Operation) -> str:
    return f"{options.app_label}_{options.model_name}_{operation.name}"
