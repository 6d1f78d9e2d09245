"""`manage.py disable_app`: send nothing more to an app."""

from argparse import ArgumentParser
from typing import Any

from repositories import accounts
from repositories.management.command import OperatorCommand
from repositories.management.lookups import find_app


class Command(OperatorCommand):
    help = (
        "Send nothing more to an app, also of what is being delivered now, and write to its contact."
        " What changes meanwhile is delivered once `enable_app` was called."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("app_id", help="such as app_5f2b1c0a9d8e7f6a5b4c3d2e")
        parser.add_argument("--reason", default="The operator disabled it.", help="shown wherever the app is shown")

    def handle(self, *, app_id: str, reason: str, **_options: Any) -> None:
        app = find_app(app_id)
        if app.disabled_at:
            self.stdout.write(f"{app} was disabled already: {app.disabled_reason}")
            return
        accounts.disable_app(app, reason)
        self.stdout.write(f"Disabled {app}: nothing is sent to it until `manage.py enable_app {app_id}`.")
