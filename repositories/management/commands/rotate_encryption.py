"""Encrypt every secret anew with the newest key."""

from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.db import models, transaction

from repositories.base.crypto import EncryptedField, WrongKeys
from repositories.base.words import plural
from repositories.management.command import OperatorCommand


class Command(OperatorCommand):
    help = (
        "Encrypt tokens and webhook keys anew with the first key of ENCRYPTION_KEYS. Put a new key in front, restart,"
        " run this, and the older keys can go. Safe while the service runs, and safe to run again."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            count = sum(map(_rewrite, apps.get_models()))
        except WrongKeys as error:
            raise CommandError(f"{error}. Nothing is lost.") from None
        self.stdout.write(self.style.SUCCESS(f"Encrypted {plural(count, 'row')} with the newest key."))


def _rewrite(model: type[models.Model]) -> int:
    """Row by row under its lock: a secret that changes meanwhile is not overwritten with the old one."""
    fields = [field.name for field in model._meta.fields if isinstance(field, EncryptedField)]
    if not fields:
        return 0
    count = 0
    for pk in list(model._default_manager.values_list("pk", flat=True)):
        with transaction.atomic():
            if row := model._default_manager.select_for_update().filter(pk=pk).first():
                row.save(update_fields=fields)
                count += any(getattr(row, field) for field in fields)
    return count
