"""One operation on many rows: queued, with progress, and with a cancel that is obeyed between two rows.

What is left to do is a list in Redis: a row leaves it when it is done, so a killed worker's successor goes on
with the row at which it stopped.
"""

import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse

from docora.console.base import BoundedPaginator
from docora.console.display import list_url, number, plural
from docora.console.operations import write_log
from docora.console.retries import retry
from repositories.base import queue
from repositories.errors import DocoraError
from repositories.messages import run_on_many_rows
from repositories.models import Repository, Watch
from repositories.watches import reset_circuit
from snapshots.delivery import redelivery
from snapshots.models import Delivery

_RUN_ID = re.compile(r"[0-9a-f]{16}")
_KEPT_FOR = 24 * 3600
_MOST = BoundedPaginator.MOST


@dataclass(frozen=True, slots=True)
class Verb:
    """What is done with the chosen rows, a batch at a time. It only marks them; the workers do what is marked."""

    label: str
    model: type[Model]
    run: Callable[[list[Any]], None]
    at_once: int = 1

    @property
    def rows(self) -> QuerySet[Any]:
        """The rows of the model, with the related rows that their titles name."""
        named = {Watch: ["app", "repository"], Delivery: ["watch__app", "watch__repository"]}
        return self.model._default_manager.select_related(*named.get(self.model, []))


VERBS = {
    "retry": Verb("Retry", Watch, lambda watches: retry(watches[0])),
    "resync": Verb("Resync", Watch, lambda watches: redelivery.resync(watches[0])),
    "retry_parked": Verb("Retry parked files", Watch, lambda watches: redelivery.retry_parked(watches[0])),
    "reset_circuit": Verb("Reset circuit", Repository, lambda repositories: reset_circuit(repositories[0])),
    "redeliver": Verb("Redeliver", Delivery, redelivery.redeliver_many, at_once=500),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    verb: Verb
    total: int
    left: int
    failed: int
    last_error: str
    last_failed: str
    is_cancelled: bool

    @property
    def done(self) -> int:
        return self.total - self.left

    @property
    def percent(self) -> int:
        return 100 * self.done // self.total if self.total else 100

    @property
    def is_over(self) -> bool:
        return self.is_cancelled or self.left == 0


def start(request: HttpRequest, name: str, rows: QuerySet[Any]) -> HttpResponse:
    verb, run_id = VERBS[name], secrets.token_hex(8)
    if refusal := _refusal(request, verb, rows):
        return refusal
    chosen = list(verb.rows.filter(pk__in=rows.values("pk")))
    if not chosen:
        return _are_gone(request, verb)
    others = f", with {plural(len(chosen) - 1, 'other')}" if len(chosen) > 1 else ""
    write_log(request, chosen, f"{verb.label}{others}")
    facts: dict[Any, Any] = {"verb": name, "total": len(chosen), "failed": 0, "started": int(time.time())}
    with queue.connection().pipeline() as pipeline:
        pipeline.hset(_key(run_id), mapping=facts)
        pipeline.rpush(_left_key(run_id), *[row.pk for row in chosen])
        pipeline.expire(_key(run_id), _KEPT_FOR)
        pipeline.expire(_left_key(run_id), _KEPT_FOR)
        pipeline.execute()
    run_on_many_rows(run_id)
    return HttpResponseRedirect(reverse("admin:bulk", args=[run_id]))


def confirm(request: HttpRequest, name: str, rows: QuerySet[Any], explanation: str) -> HttpResponse:
    """Ask first; the answer comes back as the same action with `confirmed`."""
    if "confirmed" in request.POST:
        return start(request, name, rows)
    if refusal := _refusal(request, VERBS[name], rows):
        return refusal
    if not (first := rows.values_list("pk", flat=True).first()):
        return _are_gone(request, VERBS[name])
    options, select_across = VERBS[name].model._meta, request.POST.get("select_across") or "0"
    context = {
        **admin.site.each_context(request),
        "title": VERBS[name].label,
        "opts": options,
        "count": plural(rows.count(), str(options.verbose_name), str(options.verbose_name_plural)),
        "action": request.POST["action"],
        # All rows of a list are named by the list: a form may not have a field for each of thousands.
        "select_across": select_across,
        "selected": request.POST.getlist("_selected_action") if select_across == "0" else [first],
        "explanation": explanation,
        "back": list_url(VERBS[name].model),
    }
    return TemplateResponse(request, "docora/console/confirm.html", context)


def _refusal(request: HttpRequest, verb: Verb, rows: QuerySet[Any]) -> HttpResponse | None:
    """A list counts no further than this: selecting all of a longer one would choose more rows than the page says."""
    if rows.order_by().values("pk")[: _MOST + 1].count() <= _MOST:
        return None
    messages.error(request, f"These are more than {number(_MOST)}. Narrow the list first, by a filter or a search.")
    return HttpResponseRedirect(list_url(verb.model))


def _are_gone(request: HttpRequest, verb: Verb) -> HttpResponse:
    messages.warning(request, "What was chosen is not there any more.")
    return HttpResponseRedirect(list_url(verb.model))


def run(run_id: str) -> None:
    """Started by a message; see repositories/messages.py."""
    if not _RUN_ID.fullmatch(run_id):
        raise ValueError("not the id of a run")
    connection = queue.connection()
    while (progress := progress_of(run_id)) and not progress.is_over:
        keys = [int(key) for key in connection.lrange(_left_key(run_id), 0, progress.verb.at_once - 1)]
        rows = list(progress.verb.rows.filter(pk__in=keys))
        _run_batch(run_id, progress.verb, rows)
        connection.ltrim(_left_key(run_id), len(keys), -1)


def _run_batch(run_id: str, verb: Verb, rows: list[Any]) -> None:
    """If one row of a batch fails, each is done alone: the others do not fail with it."""
    if not rows:  # they are gone, and there is nothing to be done
        return
    try:
        verb.run(rows)
    except DocoraError as error:
        if len(rows) > 1:
            for row in rows:
                _run_batch(run_id, verb, [row])
            return
        facts: dict[Any, Any] = {"last_error": str(error), "last_failed": rows[0].pk}
        queue.connection().hincrby(_key(run_id), "failed", 1)
        queue.connection().hset(_key(run_id), mapping=facts)


def progress_of(run_id: str) -> Progress | None:
    connection = queue.connection()
    answer: dict[Any, Any] = connection.hgetall(_key(run_id))
    facts = {name.decode(): value.decode() for name, value in answer.items()}
    if not facts:
        return None
    return Progress(
        verb=VERBS[facts["verb"]],
        total=int(facts["total"]),
        left=connection.llen(_left_key(run_id)),
        failed=int(facts["failed"]),
        last_error=facts.get("last_error", ""),
        last_failed=facts.get("last_failed", ""),
        is_cancelled="cancelled" in facts,
    )


def page(request: HttpRequest, run_id: str) -> HttpResponse:
    """How far it is; a POST cancels what is left."""
    progress = progress_of(run_id)
    if progress is None:
        raise Http404("It ended more than a day ago.")
    options = progress.verb.model._meta
    may_cancel = request.user.has_perm(f"{options.app_label}.change_{options.model_name}")
    if request.method == "POST":
        if not may_cancel:
            raise PermissionDenied
        queue.connection().hset(_key(run_id), "cancelled", "1")
        messages.warning(request, f"Cancelled. {number(progress.done)} of {number(progress.total)} were done before.")
        return HttpResponseRedirect(request.path)
    context = {
        **admin.site.each_context(request),
        "title": progress.verb.label,
        "progress": progress,
        "failed": progress.verb.rows.filter(pk=progress.last_failed).first() if progress.last_failed else None,
        "may_cancel": may_cancel,
        "back": list_url(progress.verb.model),
    }
    return TemplateResponse(request, "docora/console/bulk.html", context)


def _key(run_id: str) -> str:
    return f"docora:bulk:{run_id}"


def _left_key(run_id: str) -> str:
    return f"docora:bulk:{run_id}:left"
