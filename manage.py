#!/usr/bin/env python
"""Docora's command line: `manage.py help` lists the commands."""

import os
import sys


def have_streams() -> None:
    """Open /dev/null for each standard stream that the caller has closed.

    Otherwise the next file that is opened gets its number, and receives what is printed.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, os.fdopen(number, mode))


def main() -> None:
    os.umask(0o077)  # database, clones, keys and logs are for their owner alone
    have_streams()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docora.settings")
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import OperationalError, ProgrammingError

    try:
        settings.INSTALLED_APPS  # noqa: B018  reading one setting loads them all
    except ImproperlyConfigured as error:
        sys.exit(f"docora: {error}")
    try:
        execute_from_command_line(sys.argv)
    except (OperationalError, ProgrammingError) as error:
        if "no such table" in str(error) or "does not exist" in str(error):
            sys.exit(f"docora: the database in use has no tables yet: start Docora, or run manage.py migrate ({error})")
        raise


if __name__ == "__main__":
    main()
