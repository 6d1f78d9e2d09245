"""The console's small pieces, for its templates."""

from django import template

from docora.console import display
from snapshots.models import Delivery

register = template.Library()
register.filter("ago", display.ago)
register.filter("page_link", display.page_link)
register.filter("watch_badge", display.watch_badge)
register.filter("outcome", display.outcome_of)


@register.filter
def when_link(delivery: Delivery) -> str:
    return display.page_link(delivery, display.ago(delivery.attempted_at))
