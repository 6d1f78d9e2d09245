"""Small pieces of a page: badges, times, sizes, progress bars, links."""

from datetime import datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

from django.template.defaultfilters import filesizeformat
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from repositories import watch_state
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import Delivery

Tone = Literal["good", "bad", "busy", "warn", "calm"]
NOTHING = "-"
_COMMIT_PAGES = {"gitlab.com": "/-/commit/", "bitbucket.org": "/commits/"}

WATCH_TONES: dict[str, Tone] = {
    "disabled": "bad",
    WatchStatus.PENDING: "warn",
    WatchStatus.SCANNING: "busy",
    WatchStatus.SYNCED: "good",
    WatchStatus.FAILED: "bad",
}


def badge(text: object, tone: Tone) -> SafeString:
    return format_html('<span class="dc-badge dc-{}">{}</span>', tone, text)


def watch_badge(watch: Watch) -> SafeString:
    state = watch_state.shown(watch)
    return badge(state.replace("_", " "), WATCH_TONES[state])


def outcome_of(delivery: Delivery) -> SafeString:
    if delivery.status is None:
        return badge("no answer", "bad")
    return badge(delivery.status, "good" if delivery.was_accepted else "bad")


def code(text: str) -> SafeString | str:
    return format_html("<code>{}</code>", text) if text else NOTHING


def ago(moment: datetime | None) -> SafeString | str:
    """How long ago, with the exact time for who points at it."""
    if moment is None:
        return NOTHING
    passed = timezone.now() - moment
    text = f"{span(passed)} ago" if passed >= timedelta() else f"in {span(-passed)}"
    exact = f"{moment:%Y-%m-%d %H:%M:%S} UTC"
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), exact, text)


def span(duration: timedelta) -> str:
    seconds = max(0, int(duration.total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            rest = seconds % length
            smaller = {"d": (3600, "h"), "h": (60, "min"), "min": (1, "s")}[unit]
            detail = f" {rest // smaller[0]} {smaller[1]}" if rest // smaller[0] and seconds < 10 * length else ""
            return f"{seconds // length} {unit}{detail}"
    return f"{seconds} s"


def size(number: int | None) -> str:
    return NOTHING if number is None else filesizeformat(number)


def progress(done: int, total: int) -> SafeString:
    share = 100 if not total else min(100, 100 * done // total)
    return format_html(
        '<span class="dc-progress"><progress max="100" value="{0}" aria-label="{0} percent">{0} %</progress>'
        " {1} of {2}</span>",
        share,
        f"{done:,}",
        f"{total:,}",
    )


def title_of(row: Any) -> str:
    """Short enough for a heading: without the ids that a log line needs."""
    match row:
        case App():
            return row.name
        case Watch():
            return f"{row.app.name} ← {row.repository}"
    return str(row)


def page_link(row: Any, text: object = None) -> SafeString:
    url = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])
    return format_html('<a class="dc-link" href="{}">{}</a>', url, text or title_of(row))


def list_link(model: type[Any], text: object, **filters: object) -> SafeString:
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist", query=filters)
    return format_html('<a class="dc-link" href="{}">{}</a>', url, text)


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
