"""Management commands that run in a fork, with options that were read before it: reading them takes a fork 2 MB."""

from typing import Any

from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand


class PreparedCommand:
    def __init__(self, name: str, *arguments: str) -> None:
        app = get_commands()[name]
        self._command = app if isinstance(app, BaseCommand) else load_command_class(app, name)
        parser = self._command.create_parser("manage.py", name)
        # What must hold has been looked at before anything is forked.
        self._options = vars(parser.parse_args([*arguments, "--skip-checks"]))

    def run(self, **more: Any) -> None:
        options = self._options | more
        self._command.execute(*options.pop("args", ()), **options)
