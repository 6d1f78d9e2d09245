#!/usr/bin/env python
"""Docora's command line: `manage.py help` lists the commands."""

import os
import sys
from pathlib import Path


def have_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed.

    Otherwise the next file that is opened gets its number, and receives what is printed.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode))


# These begin an installation. Every other command works on what is there, and creates neither keys nor a database.
_BEGIN = {"up", "migrate", "restore"}
# These say by themselves where they work, or ask for nothing.
_SILENT = {"up", "check", "demo", "scheduler", "rqworker"}


def main() -> None:
    os.umask(0o077)  # database, clones, keys and logs are for their owner alone
    have_streams()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docora.settings")
    if os.environ.get("NO_COLOR"):  # https://no-color.org, which Django does not know
        os.environ["DJANGO_COLORS"] = "nocolor"
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if command == "up":
        from docora.processes.mark import mark_this_process

        mark_this_process()  # executes this file once more: before the libraries, so that they are loaded once
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, ProgrammingError

    from docora import keys

    keys.may_create = command in _BEGIN
    try:
        settings.INSTALLED_APPS  # noqa: B018  reading one setting loads them all
    except ImproperlyConfigured as error:
        sys.exit(f"docora: {error}")
    from repositories.base import crypto, places

    if command not in _SILENT and sys.stderr.isatty() and is_ours(command):
        sys.stderr.write(f"docora: {places.both()}\n")
    try:
        execute_from_command_line(sys.argv)
    except crypto.WrongKeys as error:
        sys.exit(f"docora: {error} ({places.both()})")
    except (OperationalError, ProgrammingError) as error:
        reason = " ".join(str(error).split())
        if "no such table" in reason or "does not exist" in reason:
            reason = f"the database in use has no tables yet ({reason})"
        elif not isinstance(error, OperationalError):
            raise
        sys.exit(
            f"docora: {reason}. This shell talks to {places.both()}. Start Docora, or run manage.py migrate, or set"
            " DOCORA_DATA_DIR, DATABASE_URL and REDIS_URL as they are where Docora runs."
        )


def is_ours(command: str) -> bool:
    rooms = (Path(__file__).parent / room for room in ("docora", "repositories", "snapshots"))
    return any((room / "management" / "commands" / f"{command}.py").exists() for room in rooms)


if __name__ == "__main__":
    main()
