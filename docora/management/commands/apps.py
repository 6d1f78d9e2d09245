"""`manage.py apps`: the client apps, and how their endpoints do."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.db.models import Count, QuerySet

from docora.console import states
from repositories import watch_state
from repositories.base.words import number
from repositories.management.command import OperatorCommand
from repositories.management.table import table
from repositories.models import App, Watch

_COLUMNS = ("app", "name", "state", "watches", "failing", "base url", "reason")


class Command(OperatorCommand):
    help = "List the client apps: id, state, how many repositories each watches, and how many of those fail."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--disabled", action="store_true", help="only apps that nothing is sent to")
        parser.add_argument("--json", action="store_true", help="print the list as JSON")

    def handle(self, *, disabled: bool, **options: Any) -> None:
        apps = App.objects.order_by("name", "pk")
        facts = list(_facts(apps.exclude(disabled_at=None) if disabled else apps))
        if options["json"]:
            self.stdout.write(json.dumps(facts, indent=2))
        elif facts:
            self.stdout.write(table(_COLUMNS, map(_row, facts)))
        else:
            self.stdout.write("No app is disabled." if disabled else "There are no apps: `manage.py onboard` adds one.")


def _facts(apps: QuerySet[App]) -> Iterator[dict[str, Any]]:
    by_app = Watch.objects.order_by().values_list("app").annotate(Count("pk"))
    watches, failing = dict(by_app), dict(by_app.filter(watch_state.failing()))
    for app in states.APP.annotated(apps):
        yield {
            "app_id": app.public_id,
            "name": app.name,
            "base_url": app.base_url,
            "email": app.email,
            "state": app.state_name,
            "reason": app.disabled_reason,
            "disabled_at": _iso(app.disabled_at),
            "failing_since": _iso(app.failing_since),
            "slow_since": _iso(app.slow_since),
            "watches": watches.get(app.pk, 0),
            "failing_watches": failing.get(app.pk, 0),
            "created_at": _iso(app.created_at),
        }


def _iso(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment else None


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    counts = {name: number(facts[name]) for name in ("watches", "failing_watches")}
    shown = facts | counts | {"state": states.APP.named(facts["state"]).label}
    names = ("app_id", "name", "state", "watches", "failing_watches", "base_url", "reason")
    return tuple(str(shown[name]) for name in names)
