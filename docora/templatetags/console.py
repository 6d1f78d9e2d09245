"""The console's small pieces, for its templates."""

from django import template

from docora.console import display
from snapshots.models import Delivery

register = template.Library()
register.filter("ago", display.ago)
register.filter("page_link", display.page_link)
register.filter("state_badge", display.state_badge)
register.filter("number", display.number)
register.filter("milliseconds", display.milliseconds)
register.filter("size", display.size)
register.filter("outcome", display.outcome_of)


@register.filter
def when_link(delivery: Delivery) -> str:
    return display.page_link(delivery, display.ago(delivery.attempted_at))
