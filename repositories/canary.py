"""Whether ENCRYPTION_KEYS are the keys of this database. Asked before anything starts or is encrypted."""

from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.db import DatabaseError, connection, connections

from repositories.base.crypto import WrongKeys as WrongKeys
from repositories.models import App, Canary


def check_keys() -> None:
    """Raises WrongKeys. The oldest and the newest app are decrypted too: they may be encrypted with different keys."""
    Canary.objects.first()
    App.objects.order_by("pk").first()
    App.objects.order_by("pk").last()


def check_keys_at_start() -> None:
    """At the start of a process. One whose database does not answer goes on, and waits for it later.

    The connection is closed: the process may fork.
    """
    try:
        with suppress(DatabaseError):
            check_keys()
    finally:
        connection.close()


def store(sender: AppConfig, using: str, **_: Any) -> None:
    """Receives post_migrate. A database of an earlier version gets its canary if the keys decrypt what it has."""
    if sender.label != "repositories" or Canary._meta.db_table not in connections[using].introspection.table_names():
        return
    if not Canary.objects.using(using).exists():
        try:
            check_keys()
        except WrongKeys:
            return  # told by the start, by /ready and by `check`
        Canary.objects.using(using).get_or_create(pk=1)
