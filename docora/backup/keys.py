"""The keys, apart from the backup: together with it they are all the tokens in clear."""

import hashlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from cryptography.fernet import Fernet
from django.conf import settings
from django.core.signals import setting_changed

from docora import env
from docora.backup import BackupError, ExistsAlready
from docora.keys import listed

_LINE = re.compile(r"(DJANGO_SECRET_KEY|ENCRYPTION_KEYS)=(.+)")


def fingerprints() -> list[str]:
    """Digests of the encryption keys, the newest first. The keys are 256 random bits, which no digest gives away."""
    return [hashlib.sha256(key.encode()).hexdigest()[:16] for key in settings.ENCRYPTION_KEYS]


def places() -> Iterator[str]:
    """Where each of the keys is that the backup does not have."""
    folder = settings.DATA_DIR / "keys"
    given = {"DJANGO_SECRET_KEY": env.SECRET_KEY, "ENCRYPTION_KEYS": env.ENCRYPTION_KEYS}
    files = {"DJANGO_SECRET_KEY": "django_secret_key", "ENCRYPTION_KEYS": "encryption_key"}
    for name, value in given.items():
        yield f"{name}: in the environment" if value else f"{name}: in {folder / files[name]}"


def write(file: Path) -> None:
    """Write the keys as lines of an environment file that its owner alone may read."""
    lines = {"DJANGO_SECRET_KEY": settings.SECRET_KEY, "ENCRYPTION_KEYS": ",".join(settings.ENCRYPTION_KEYS)}
    try:
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ExistsAlready(file) from None
    except OSError as error:
        raise BackupError(f"{file} cannot be written: {error.strerror}") from None
    with os.fdopen(handle, "w") as target:
        target.write("".join(f"{name}={shlex.quote(value)}\n" for name, value in lines.items()))
        target.flush()
        os.fsync(target.fileno())


def take_over(file: Path) -> None:
    """Put the keys of the file in the place of generated ones. Those of the environment stay as they are."""
    found = _read(file)
    folder = settings.DATA_DIR / "keys"
    if not env.SECRET_KEY:
        _replace(folder / "django_secret_key", found["DJANGO_SECRET_KEY"])
    if not env.ENCRYPTION_KEYS:
        settings.ENCRYPTION_KEYS = listed(found["ENCRYPTION_KEYS"])
        _replace(folder / "encryption_key", "\n".join(settings.ENCRYPTION_KEYS))
        setting_changed.send(sender=None, setting="ENCRYPTION_KEYS", value=settings.ENCRYPTION_KEYS, enter=True)


def check(needed: list[str]) -> list[str]:
    """Fail without the key with which the newest secrets are encrypted; returns the older ones that are missing."""
    missing = [one for one in needed if one not in fingerprints()]
    if missing and missing[0] == needed[0]:
        raise BackupError(
            "the encryption key of this backup is not here: restore with --keys FILE, or set ENCRYPTION_KEYS to what it"
            f" was (its fingerprint is {needed[0]}, here is {', '.join(fingerprints())})"
        )
    return missing


def _read(file: Path) -> dict[str, str]:
    try:
        text = file.read_text()
    except (OSError, ValueError) as error:
        raise BackupError(f"{file} cannot be read: {error}") from None
    found = {name: "".join(shlex.split(value)) for name, value in _LINE.findall(text)}
    try:
        for key in listed(found["ENCRYPTION_KEYS"]):
            Fernet(key)
        found["DJANGO_SECRET_KEY"]
    except (KeyError, ValueError):
        raise BackupError(f"{file} is not a file of keys that `manage.py backup --keys` has written") from None
    return found


def _replace(path: Path, value: str) -> None:
    draft = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(value)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
