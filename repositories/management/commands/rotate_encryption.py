"""Encrypt every secret anew with the newest key."""

from typing import Any

from cryptography.fernet import InvalidToken
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from repositories.models import App, Watch


class Command(BaseCommand):
    help = (
        "Encrypt tokens and webhook keys anew with the first key of ENCRYPTION_KEYS. Put a new key in front, restart,"
        " run this, and the older keys can go. Safe while the service runs, and safe to run again."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            self._rewrite_all()
        except InvalidToken:
            raise CommandError(
                "ENCRYPTION_KEYS does not decrypt what is stored: add the key that it was encrypted with, behind the"
                " new one. Nothing is lost."
            ) from None

    def _rewrite_all(self) -> None:
        apps = self._rewrite(App, "webhook_key")
        self._rewrite(App, "previous_webhook_keys")
        watches = self._rewrite(Watch, "token")
        self.stdout.write(
            self.style.SUCCESS(f"Encrypted {apps} webhook keys and {watches} tokens with the newest key.")
        )

    def _rewrite(self, model: type[App] | type[Watch], field: str) -> int:
        """Row by row under its lock: a secret that changes meanwhile is not overwritten with the old one."""
        count = 0
        for pk in list(model._default_manager.values_list("pk", flat=True)):
            with transaction.atomic():
                row = model._default_manager.select_for_update().filter(pk=pk).first()
                if row and getattr(row, field):
                    row.save(update_fields=[field])
                    count += 1
        return count
