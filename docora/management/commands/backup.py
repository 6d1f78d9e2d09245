"""`manage.py backup FILE`: the database in one file, while the service works."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError

from docora.backup import BackupError, keys, service
from repositories.base.words import plural
from repositories.management.command import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Write one consistent copy of the database to FILE, also while the service works; FILE is checked before it"
        " gets its name, overwrites nothing, and is for its owner alone. The keys are not in it: they are named, and"
        " --keys writes them to a second file. Keep the two apart. PostgreSQL needs pg_dump as new as the server."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("file", type=Path, help="the file to write, such as /backup/docora-monday.tar.gz")
        parser.add_argument("--keys", type=Path, metavar="FILE", help="write the keys to this file, mode 0600")

    def handle(self, *args: Any, **options: Any) -> None:
        file, keys_file = options["file"].absolute(), options["keys"]
        try:
            with service.errors_in_a_line():
                facts = service.back_up(file, keys_file=keys_file)
        except BackupError as error:
            raise CommandError(str(error)) from None
        size = plural(file.stat().st_size, "byte")
        self.stdout.write(self.style.SUCCESS(f"{file}: {facts.engine}, {size}, read back and whole."))
        self.stdout.write("It does not have the keys, without which its tokens cannot be decrypted:")
        for place in [f"all of them: in {keys_file}"] if keys_file else keys.places():
            self.stdout.write(f"  {place}")
        self.stdout.write("Keep them apart from it. Restore with `manage.py restore`.")
