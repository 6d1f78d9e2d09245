"""Delete a client app, after showing what goes with it."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from repositories import accounts
from repositories.base.words import number
from repositories.management.command import OperatorCommand
from repositories.management.lookups import find_app
from repositories.models import App


class Command(OperatorCommand):
    help = "Delete a client app with its watches, and the clones that nobody else watches. Asks first."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("app_id", help="app_… as `onboard` printed it")
        parser.add_argument("--yes", action="store_true", help="do not ask")
        parser.add_argument("--dry-run", action="store_true", help="only show what would go")

    def handle(self, *args: Any, **options: Any) -> None:
        app = find_app(options["app_id"])
        self._show(app, accounts.impact_of_deleting(app))
        if options["dry_run"]:
            return
        if not options["yes"] and not _is_wanted():
            raise CommandError("Nothing was deleted.")
        accounts.delete_app(app)
        self.stdout.write("Deleted.")

    def _show(self, app: App, impact: accounts.Impact) -> None:
        self.stdout.write(
            f"{app}\n"
            f"  watches                       {number(impact.watches)}\n"
            f"  files delivered               {number(impact.files)}\n"
            f"  clones that nobody else uses  {number(len(impact.orphans))}"
        )
        for name in impact.orphans:
            self.stdout.write(f"    {name}")


def _is_wanted() -> bool:
    try:
        return input("Delete it? Type yes: ").strip() == "yes"
    except EOFError:  # nobody is there to answer
        return False
