"""Register a client app and show its credentials, once."""

import getpass
import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from repositories import accounts


class Command(BaseCommand):
    help = "Register a client app and print its id, bearer token and webhook key. They are not shown again."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what people call the app")
        parser.add_argument("base_url", help="webhooks go to BASE_URL/create, /update, /delete and /sync_failed")
        parser.add_argument("--email", default="", help="whom to write to when deliveries fail")
        parser.add_argument("--website", default="")
        parser.add_argument("--description", default="")
        parser.add_argument(
            "--webhook-key",
            default="",
            metavar="-",
            help="read the app's own key, 16 to 500 characters, from standard input (default: a generated one)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        webhook_key = options["webhook_key"]
        if webhook_key == "-":
            webhook_key = _typed_key()
        elif webhook_key:
            self.stderr.write(
                "Every user of this host sees a key that is an argument. The next release refuses it:"
                " use `--webhook-key -` and type the key, or pipe it in."
            )
        try:
            credentials = accounts.onboard(
                options["name"],
                options["base_url"],
                webhook_key=webhook_key,
                email=options["email"],
                website=options["website"],
                description=options["description"],
            )
        except ValidationError as error:
            complaints = [f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items()]
            raise CommandError("; ".join(complaints)) from None
        if options["json"]:
            self.stdout.write(json.dumps(asdict(credentials)))
            return
        self.stdout.write(
            f"app id        {credentials.app_id}\n"
            f"bearer token  {credentials.bearer_token}\n"
            f"webhook key   {credentials.webhook_key}\n\n"
            "Keep them now: they are not shown again."
        )


def _typed_key() -> str:
    key = getpass.getpass("Webhook key: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not key:
        raise CommandError("There is no webhook key on standard input.")
    return key
