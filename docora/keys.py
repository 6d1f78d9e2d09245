"""Keys in files: those that the embedded default generates once, with mode 0600, and the GitHub App's."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

may_create = True
"""manage.py sets it to False for every command that does not begin an installation."""


def read_or_create(path: Path, generate: Callable[[], str]) -> str:
    """The key in path; processes that start together all get the one that was there first.

    Empty if it is missing and may not be created: such a command encrypts nothing.
    """
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        if not may_create:
            return ""
    except OSError as error:
        raise ImproperlyConfigured(f"DOCORA_DATA_DIR: cannot read {path}: {error.strerror}") from None
    try:
        # Not with parents=True: that would leave the data directory, and the database in it, open to everybody.
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, parents=folder is not path.parent, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent)
        try:
            os.write(handle, generate().encode())
            os.fsync(handle)
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            os.close(handle)
            os.unlink(draft)
    except OSError as error:
        raise ImproperlyConfigured(f"DOCORA_DATA_DIR: cannot write {path}: {error.strerror}") from None
    return path.read_text().strip()


def listed(text: str) -> list[str]:
    """The keys of a file, the newest first: one in each line, or separated by commas."""
    return text.replace(",", " ").split()


def read_rsa_key(name: str, text: str, path: Path | None) -> str:
    """A private key from the variable `name`, or from the file in `name`_FILE. A wrong value is never printed."""
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        pem = path.read_text() if path and not text else text.replace("\\n", "\n")
        is_usable = isinstance(load_pem_private_key(pem.encode(), password=None), RSAPrivateKey)
    except (OSError, ValueError, TypeError):
        is_usable = False
    if not is_usable:
        raise ImproperlyConfigured(f"{name}: expected an RSA private key (PEM, no password), here or in {name}_FILE")
    return pem
