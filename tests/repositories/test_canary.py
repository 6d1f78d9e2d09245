"""The canary: keys that are not those of the database are noticed before anything is encrypted with them."""

import pytest
from cryptography.fernet import Fernet
from django.core.management import call_command
from pytest_django import Settings

from repositories import accounts, canary
from repositories.models import App, Canary

pytestmark = pytest.mark.django_db


def another_key() -> str:
    return Fernet.generate_key().decode()


def test_a_database_without_any_app_knows_its_keys(settings: Settings) -> None:
    canary.check_keys()
    settings.ENCRYPTION_KEYS = [another_key()]
    with pytest.raises(canary.WrongKeys, match="ENCRYPTION_KEYS does not decrypt"):
        canary.check_keys()


def test_nothing_is_encrypted_with_other_keys(settings: Settings) -> None:
    settings.ENCRYPTION_KEYS = [another_key()]
    with pytest.raises(canary.WrongKeys):
        accounts.onboard("Docs", "https://docs.example.com")
    assert not App.objects.exists()


def test_without_a_key_the_variable_is_named(settings: Settings) -> None:
    settings.ENCRYPTION_KEYS = []
    with pytest.raises(canary.WrongKeys, match="ENCRYPTION_KEYS is not set"):
        canary.check_keys()


def test_a_rotation_takes_the_canary_along(settings: Settings) -> None:
    old, new = settings.ENCRYPTION_KEYS[0], another_key()
    settings.ENCRYPTION_KEYS = [new, old]
    call_command("rotate_encryption", verbosity=0)
    settings.ENCRYPTION_KEYS = [new]
    canary.check_keys()
    settings.ENCRYPTION_KEYS = [old]
    with pytest.raises(canary.WrongKeys):
        canary.check_keys()


def test_a_database_of_an_earlier_version_gets_a_canary_if_the_keys_are_its_own(settings: Settings) -> None:
    accounts.onboard("Docs", "https://docs.example.com")
    Canary.objects.all().delete()
    old = settings.ENCRYPTION_KEYS
    settings.ENCRYPTION_KEYS = [another_key()]
    call_command("migrate", verbosity=0)
    assert not Canary.objects.exists()
    settings.ENCRYPTION_KEYS = old
    call_command("migrate", verbosity=0)
    assert Canary.objects.exists()
