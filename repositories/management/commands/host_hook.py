"""Make a hook for all watched repositories of a git host, and show its secret, once."""

import json
from argparse import ArgumentParser
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError

from repositories import hooks
from repositories.management.command import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Make a hook that tells of pushes to every watched repository of a host, and print its path and secret. The"
        " secret is not shown again. The admin lists and ends hooks."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("host", help="one of DOCORA_GIT_HOSTS, such as github.com")
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            hook, secret = hooks.open_for_host(options["host"])
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from None
        path = f"/hooks/{hook.public_id}"
        if options["json"]:
            self.stdout.write(json.dumps({"path": path, "secret": secret}))
            return
        self.stdout.write(
            f"path    {path}\nsecret  {secret}\n\nAt the host, the URL is that of this Docora with this path. "
            "Keep the secret now: it is not shown again.\ndocs/hooks.md says what to fill in at each host."
        )
