"""Keys that the embedded default generates once and keeps with mode 0600."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def read_or_create(path: Path, generate: Callable[[], str]) -> str:
    """The key in path; processes that start together all get the one that was there first."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        pass
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
