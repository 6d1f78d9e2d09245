"""The console's small pieces, for its templates."""

from django import template
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.utils.safestring import SafeString, mark_safe

from docora.console import display
from snapshots.models import Delivery

register = template.Library()
register.filter("ago", display.ago)
register.filter("page_link", display.page_link)
register.filter("title_of", display.title_of)
register.filter("state_badge", display.state_badge)
register.filter("number", display.number)
register.filter("milliseconds", display.milliseconds)
register.filter("size", display.size)
register.filter("outcome", display.outcome_of)
register.filter("path", display.path_of)


@register.filter
def when_link(delivery: Delivery) -> str:
    return display.page_link(delivery, display.ago(delivery.attempted_at))


@register.filter
def counted(changes: ChangeList) -> str:
    """How many rows a list has, with their name; a list that is too long to be counted says so."""
    options, count = changes.opts, changes.result_count
    most = getattr(changes.paginator, "MOST", None)
    if most and count >= most:
        return f"{display.number(count)} or more {options.verbose_name_plural}"
    return display.plural(count, str(options.verbose_name), str(options.verbose_name_plural))


@register.filter
def page_url(changes: ChangeList, page: int) -> str:
    return changes.get_query_string({PAGE_VAR: page})


@register.filter
def with_main(page: SafeString) -> SafeString:
    """The theme's column beside the menu is the page's <main>; its end is the last but one."""
    before, _, after = page.replace('<div id="main"', '<main id="main"', 1).rpartition("</div>")
    column, _, between = before.rpartition("</div>")
    return mark_safe(f"{column}</main>{between}</div>{after}")  # noqa: S308  what the theme's template made
