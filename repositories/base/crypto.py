"""Secrets at rest: MultiFernet, newest key first, so that keys can be rotated while the service runs."""

from functools import cache
from typing import TYPE_CHECKING, Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.core.signals import setting_changed
from django.db import models


class WrongKeys(InvalidToken):
    """Its one line names the variable, and is shown to anybody who asks /ready."""


@cache
def _fernet() -> MultiFernet:
    if not settings.ENCRYPTION_KEYS:
        raise WrongKeys("ENCRYPTION_KEYS is not set, and no key was generated in DOCORA_DATA_DIR")
    return MultiFernet([Fernet(key) for key in settings.ENCRYPTION_KEYS])


def _forget_keys(*, setting: str, **_: Any) -> None:
    if setting == "ENCRYPTION_KEYS":
        _fernet.cache_clear()


setting_changed.connect(_forget_keys)


def encrypt(text: str) -> str:
    return _fernet().encrypt(text.encode()).decode()


def decrypt(text: str) -> str:
    try:
        return _fernet().decrypt(text.encode()).decode()
    except InvalidToken as error:
        if isinstance(error, WrongKeys):
            raise
        raise WrongKeys(
            "ENCRYPTION_KEYS does not decrypt what is stored: add the key that it was encrypted with, at the end"
        ) from None


if TYPE_CHECKING:
    _TextField = models.TextField[str, str]
else:
    _TextField = models.TextField


class EncryptedField(_TextField):
    """Text that is encrypted in the database; the empty text stays empty.

    Not searchable: every encryption of one text differs.
    """

    def get_prep_value(self, value: Any) -> Any:
        text = super().get_prep_value(value)
        return encrypt(text) if text else text

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        return decrypt(value) if value else value
