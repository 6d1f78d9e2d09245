#!/usr/bin/env python
"""Docora's command line: `manage.py help` lists the commands."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "docora.settings")
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        settings.INSTALLED_APPS  # noqa: B018  reading one setting loads them all
    except ImproperlyConfigured as error:
        sys.exit(f"docora: {error}")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
