"""How the console shows things: badges, links, progress bars, and the one format of numbers, times and sizes."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from docora.console.states import State, Tone
from repositories.base.words import number as number
from repositories.base.words import plural as plural
from repositories.models import App, Repository, Watch
from snapshots.models import Delivery, Parked

NOTHING = "-"
_COMMIT_PAGES = {"gitlab.com": "/-/commit/", "bitbucket.org": "/commits/"}
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def badge(text: object, tone: Tone) -> SafeString:
    return format_html('<span class="dc-badge dc-{}">{}</span>', tone, text)


def state_badge(row: Any) -> SafeString:
    """The state that `States.attach` has given the row."""
    state: State = row.shown_state
    return badge(state.label, state.tone)


def outcome_of(delivery: Delivery) -> SafeString:
    if delivery.status is None:
        return badge("no answer", "bad")
    return badge(delivery.status, "good" if delivery.was_accepted else "bad")


def path_of(delivery: Delivery) -> SafeString | str:
    """Where the file went in pieces, with the number of this piece."""
    if not delivery.pieces:
        return delivery.path or NOTHING
    return format_html("{} <small>piece {} of {}</small>", delivery.path, delivery.piece, delivery.pieces)


def code(text: str) -> SafeString | str:
    return format_html("<code>{}</code>", text) if text else NOTHING


def ago(moment: datetime | None) -> SafeString | str:
    """How long ago, with the exact time as the tooltip."""
    if moment is None:
        return NOTHING
    passed = timezone.now() - moment
    return _moment(moment, f"{span(passed)} ago" if passed >= timedelta() else f"in {span(-passed)}")


def due(moment: datetime | None) -> SafeString | str:
    """When something planned comes; a time that has passed is shown as "due now"."""
    if moment is None or moment > timezone.now():
        return ago(moment)
    return _moment(moment, "due now")


def _moment(moment: datetime, text: str) -> SafeString:
    exact = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact, text)


def span(duration: timedelta) -> str:
    """In the largest unit that fits; below ten of it, with the next smaller unit."""
    seconds = max(0, int(duration.total_seconds()))
    for (unit, length), (smaller, part) in pairwise(_UNITS):
        if seconds >= length:
            rest = seconds % length // part
            return f"{seconds // length} {unit}" + (f" {rest} {smaller}" if rest and seconds < 10 * length else "")
    return f"{seconds} s"


def milliseconds(count: int | None) -> str:
    if count is None:
        return NOTHING
    if count < 1000:
        return f"{count} ms"
    return f"{count / 1000:.1f} s" if count < 60_000 else span(timedelta(milliseconds=count))


def percent(share: float | None) -> str:
    """100 % only for all and 0 % only for none; nearly all is 99.99 % at the most."""
    if share is None:
        return NOTHING
    return f"{share if share in (0, 100) else min(max(share, 0.01), 99.99):.4g} %"


def size(count: int | None) -> str:
    return NOTHING if count is None else filesizeformat(count)


def progress(done: int, total: int) -> SafeString:
    share = 100 if not total else min(100, 100 * done // total)
    return format_html(
        '<span class="dc-progress"><progress max="100" value="{0}" aria-label="{0} percent">{0} %</progress>'
        " {1} of {2}</span>",
        share,
        number(done),
        number(total),
    )


def title_of(row: Any) -> str:
    """Short enough for a heading: without the ids that a log line needs."""
    match row:
        case App():
            return row.name
        case Watch():
            return f"{row.app.name} ← {row.repository}"
        case Parked():
            return f"{row.file.path} for {row.watch.app.name}"
    return str(row)


def link(url: str, text: object) -> SafeString:
    return format_html('<a class="dc-link" href="{}">{}</a>', url, text)


def row_url(row: Any) -> str:
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def list_url(model: type[Any], **filters: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist", query=filters)


def page_link(row: Any, text: object = None) -> SafeString:
    return link(row_url(row), text or title_of(row))


def list_link(model: type[Any], text: object, **filters: object) -> SafeString:
    return link(list_url(model, **filters), text)


def commit_link(repository: Repository, sha: str) -> SafeString | str:
    if not sha:
        return NOTHING
    page = _COMMIT_PAGES.get(urlsplit(repository.url).hostname or "", "/commit/")
    return format_html(
        '<a class="dc-link" href="{}{}{}" rel="noreferrer" target="_blank"><code title="{}">{}</code></a>',
        repository.url.removesuffix(".git"),
        page,
        sha,
        sha,
        sha[:10],
    )


def lines(*parts: object) -> SafeString:
    return format_html_join("", "<div>{}</div>", ((part,) for part in parts if part))
