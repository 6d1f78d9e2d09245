"""Give an app a new bearer token and show it, once."""

import json
from argparse import ArgumentParser
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from repositories import accounts
from repositories.errors import TooManyTokens
from repositories.management.command import OperatorCommand
from repositories.management.lookups import find_app


class Command(OperatorCommand):
    help = "Give an app a new bearer token and print it. It is not shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("app_id", help="such as app_5f2b1c0a9d8e7f6a5b4c3d2e")
        parser.add_argument(
            "--overlap",
            type=float,
            default=24,
            metavar="HOURS",
            help="for so long the old token works too; 0 ends every earlier token at once (default: 24)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        app = find_app(options["app_id"])
        if not 0 <= options["overlap"] <= 24 * 30:
            raise CommandError("--overlap: expected 0 to 720 hours")
        try:
            token = accounts.rotate_bearer_token(app, overlap=timedelta(hours=options["overlap"]))
        except TooManyTokens as error:
            raise CommandError(str(error)) from None
        until = accounts.previous_bearer_until(app)
        if options["json"]:
            facts = {
                "app_id": app.public_id,
                "bearer_token": token,
                "previous_token_until": until and until.isoformat(),
            }
            self.stdout.write(json.dumps(facts))
            return
        ends = f"Earlier tokens work until {until:%Y-%m-%d %H:%M} UTC." if until else "Earlier tokens work no more."
        self.stdout.write(f"bearer token  {token}\n\n{ends}\nKeep it now: it is not shown again.")
