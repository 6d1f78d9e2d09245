"""`manage.py check`, which also asks whether ENCRYPTION_KEYS decrypt what the database has, and what /ready asks."""

from typing import Any

from django.core.checks import Tags, register
from django.core.management.commands.check import Command as DjangoCheck
from django.db import DatabaseError, connection

from docora import checks


class Command(DjangoCheck):
    def handle(self, *labels: Any, **options: Any) -> None:
        register(checks.check_condition, Tags.database)
        super().handle(*labels, **options | {"databases": options["databases"] or _reachable()})


def _reachable() -> list[str]:
    """Django's own checks end in a traceback where a database is named that does not answer."""
    try:
        connection.ensure_connection()
    except DatabaseError:
        return []
    return ["default"]
