"""`manage.py ping`: does an app's endpoint answer?"""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from repositories.management.command import OperatorCommand
from repositories.management.lookups import find_app
from snapshots.delivery import notices


class Command(OperatorCommand):
    help = "Send a signed ping to an app's endpoint and print how it answers."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("app_id", help="such as app_5f2b1c0a9d8e7f6a5b4c3d2e")

    def handle(self, *args: Any, **options: Any) -> None:
        app = find_app(options["app_id"])
        answer = notices.ping(app)
        if not answer.accepted:
            raise CommandError(f"{app.base_url}/ping: {answer.error} after {answer.milliseconds} ms")
        self.stdout.write(f"{app.base_url}/ping answered {answer.status} after {answer.milliseconds} ms")
