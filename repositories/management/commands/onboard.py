"""Register a client app and show its credentials, once."""

import getpass
import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError

from repositories import accounts
from repositories.base import dialling, places
from repositories.management.command import OperatorCommand
from repositories.management.redis_errors import redis_answers
from repositories.models import OptionalEvent


class Command(OperatorCommand):
    help = (
        "Register a client app and print its id, bearer token and webhook key. They are not shown again."
        " Warns if nothing can be sent to BASE_URL now."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("name", help="what people call the app")
        parser.add_argument("base_url", help="webhooks go to BASE_URL/create, /update, /delete and /sync_failed")
        parser.add_argument("--email", default="", help="whom to write to when deliveries fail")
        parser.add_argument("--website", default="", help="shown in the admin")
        parser.add_argument("--description", default="", help="shown in the admin")
        parser.add_argument(
            "--events",
            default="",
            metavar="EVENT,…",
            help=f"optional events that the app wants to be told: {', '.join(OptionalEvent.values)}",
        )
        parser.add_argument(
            "--webhook-key",
            default="",
            metavar="-",
            help="read the app's own key, 16 to 500 characters, from standard input (default: a generated one)",
        )
        parser.add_argument(
            "--may-change-base-url", action="store_true", help="let the app change its base URL itself, through the API"
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
                events=[event.strip() for event in options["events"].split(",") if event.strip()],
                email=options["email"],
                website=options["website"],
                description=options["description"],
                may_change_base_url=options["may_change_base_url"],
            )
        except ValidationError as error:
            complaints = [f"{field}: {' '.join(texts)}" for field, texts in error.message_dict.items()]
            raise CommandError("; ".join(complaints)) from None
        if options["json"]:
            self.stdout.write(json.dumps(asdict(credentials)))
        else:
            self.stdout.write(
                f"app id        {credentials.app_id}\n"
                f"bearer token  {credentials.bearer_token}\n"
                f"webhook key   {credentials.webhook_key}\n"
                f"database      {places.database()}\n\n"
                "Keep them now: they are not shown again."
            )
        self._warn(credentials.app_id, options["base_url"])

    def _warn(self, app_id: str, base_url: str) -> None:
        """After the credentials, which are shown once: looking at the URL may take seconds."""
        if obstacle := dialling.obstacle(base_url):
            self.stderr.write(
                f"Warning: webhooks to {base_url} would fail now: {obstacle}. The app is registered all the same;"
                f" `manage.py ping {app_id}` tries it again."
            )
        if not redis_answers():
            self.stderr.write(
                f"Warning: the Redis {places.redis_server()} does not answer: if Docora runs, it runs with other"
                " settings than this shell, and perhaps on another database."
            )


def _typed_key() -> str:
    key = getpass.getpass("Webhook key: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    if not key:
        raise CommandError("There is no webhook key on standard input.")
    return key
