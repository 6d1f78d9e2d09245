"""The fence that the kernel keeps: an flock beside the clones, inherited by the git child.

Git cannot check a token. But an flock belongs to the open file, so it lasts until the last process
that inherited it has ended: the git child of a killed or frozen worker still keeps the next one out.

A lock file is removed only by somebody who holds its flock, and counts only while it is the file at
its path: so two processes can never hold the flocks of two different files for one key.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from django.conf import settings

from repositories.errors import Holder

_POLL = 0.05
_LEFTOVER_AGE = 3600


def folder() -> Path:
    return Path(settings.REPOS_BASE_PATH) / ".locks"


def path_of(key: str) -> Path:
    name = quote(key, safe="")
    return folder() / (name if len(name) <= 200 else f"{name[:130]}-{sha256(key.encode()).hexdigest()}")


@contextmanager
def flocked(path: Path, *, me: Holder, while_it_is_taken: Callable[[Holder | None], None]) -> Iterator[int]:
    """Hold the flock; `while_it_is_taken(by)` is called while it is somebody else's, and may raise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = _take(path)
    while fd is None:
        while_it_is_taken(_read_note(path))
        time.sleep(_POLL)
        fd = _take(path)
    try:
        os.ftruncate(fd, 0)
        os.write(fd, json.dumps(asdict(me)).encode())
        yield fd
    finally:
        os.close(fd)


def tidy(path: Path) -> None:
    """Remove the lock file, and those that earlier holders had to leave to a child that outlived them."""
    remove_if_free(path)
    long_ago = time.time() - _LEFTOVER_AGE
    for other in path.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if other.stat().st_mtime < long_ago:
                remove_if_free(other)


def remove_if_free(path: Path) -> None:
    """Unlink the lock file unless somebody holds its flock."""
    with contextlib.suppress(FileNotFoundError):
        fd = _take(path, create=False)
        if fd is not None:
            path.unlink()
            os.close(fd)


def _take(path: Path, *, create: bool = True) -> int | None:
    """The file at path, flocked; None if somebody else holds it or has just removed it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


def _read_note(path: Path) -> Holder | None:
    """Who said that it took this flock."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
