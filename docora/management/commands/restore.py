"""`manage.py restore FILE`: a backup into an empty database."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from docora.backup import BackupError, service


class Command(BaseCommand):
    help = (
        "Load a backup into an empty database, while nothing of Docora runs. Every clone is made anew, and every app is"
        " told every file again under new message ids: the rows do not know what was told after the backup. A file"
        " that was created and told after the backup and is deleted by now stays with the app; only comparing the app's"
        " files with the repository (verify) finds it."
    )
    # The database is empty: there is nothing that could be checked yet.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="what `manage.py backup` has written")
        parser.add_argument("--keys", type=Path, metavar="FILE", help="what `manage.py backup --keys` has written")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with service.errors_in_a_line():
                service.restore(options["file"].absolute(), keys_file=options["keys"], say=self.stdout.write)
        except BackupError as error:
            raise CommandError(str(error)) from None
        done = "Restored. Start Docora: it looks at every repository and tells every app everything again."
        self.stdout.write(self.style.SUCCESS(done))
        self.stdout.write("Watches removed after the backup are back, those made after it are gone.")
