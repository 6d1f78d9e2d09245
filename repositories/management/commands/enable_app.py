"""`manage.py enable_app`: send to an app again."""

from argparse import ArgumentParser
from typing import Any

from repositories import accounts
from repositories.management.command import OperatorCommand
from repositories.management.lookups import find_app


class Command(OperatorCommand):
    help = "Send to a disabled app again: first all that it has missed."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("app_id", help="such as app_5f2b1c0a9d8e7f6a5b4c3d2e")

    def handle(self, *, app_id: str, **_options: Any) -> None:
        app = find_app(app_id)
        if app.disabled_at is None:
            self.stdout.write(f"{app} was enabled already.")
            return
        accounts.enable_app(app)
        self.stdout.write(f"Enabled {app}: what it has missed is being delivered.")
