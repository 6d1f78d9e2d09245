"""The file lock: an flock on a file beside the clones, inherited by the git child.

Git cannot check a fence. But an flock belongs to the open file, so it lasts until the last process that
inherited it has ended: the git child of a killed or frozen worker still keeps the next git out.

Only the holder of its flock removes a lock file, and an flock counts only while its file is the one at the
path. So two processes can never hold the flocks of two different files for one key.
"""

import contextlib
import fcntl
import glob
import json
import logging
import os
import signal
import time
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from django.conf import settings

from repositories.errors import Holder

log = logging.getLogger("docora.repo_lock")

_LEFTOVER_AGE = 3600
_POLL = 0.01
KILLED_GIT_ENDS_WITHIN = 2.0


def folder() -> Path:
    return Path(settings.REPOS_BASE_PATH) / ".locks"


def path_of(key: str) -> Path:
    name = quote(key, safe="")
    return folder() / (name if len(name) <= 200 else f"{name[:130]}-{sha256(key.encode()).hexdigest()}")


def take(path: Path, me: Holder) -> int | None:
    """Take the flock and write `me` into its file. Returns the descriptor; None while another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = _take(path, os.O_CREAT)
    if fd is not None:
        with contextlib.suppress(OSError):  # on a full disk the file stays empty, and the lock holds
            os.ftruncate(fd, 0)
            os.write(fd, json.dumps(asdict(me)).encode())
    return fd


def taken_by(path: Path) -> Holder | None:
    """The holder that the file names."""
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def end_orphans(path: Path) -> None:
    """Kill the children on this host that inherited the flock. The caller must hold the lock in Redis.

    /proc shows which processes have the file open with its flock. A worker's own descriptor is close-on-exec,
    that of a child is not. On systems without /proc nothing is found, and the wait ends with a time-out.
    """
    # glob, not Path.glob: that one raises if a process ends between its listing and the listing of its files
    for descriptor in map(Path, glob.iglob("/proc/[0-9]*/fd/[0-9]*")):
        with contextlib.suppress(OSError):
            if descriptor.samefile(path) and _is_inherited_flock(descriptor):
                os.kill(int(descriptor.parts[2]), signal.SIGKILL)
                log.warning("Killed process %s, left running on %s by a dead job", descriptor.parts[2], path.name)


def _is_inherited_flock(descriptor: Path) -> bool:
    info = (descriptor.parent.parent / "fdinfo" / descriptor.name).read_text()
    fields = dict(line.split(":", 1) for line in info.splitlines())
    return "lock" in fields and not int(fields["flags"], 8) & os.O_CLOEXEC


def tidy(path: Path, *, patience: float) -> None:
    """Remove the lock file, and old ones that earlier holders could not remove because a child had them."""
    remove_when_free(path, patience=patience)
    long_ago = time.time() - _LEFTOVER_AGE
    with contextlib.suppress(OSError):
        for other in path.parent.iterdir():
            if other.stat().st_mtime < long_ago:
                remove_if_free(other)


def remove_when_free(path: Path, *, patience: float, kill: bool = False) -> None:
    """Unlink the lock file as soon as nobody holds its flock; after `patience` seconds leave it to `tidy`.

    A killed git has helpers that inherited the flock too (git-remote-http, index-pack). The kernel ends them a
    moment after the git that the worker waited for.
    """
    deadline = time.monotonic() + patience
    while not remove_if_free(path) and time.monotonic() < deadline:
        if kill:  # each time: what was killed the last time may have started another process just before
            end_orphans(path)
        time.sleep(_POLL)


def remove_if_free(path: Path) -> bool:
    """Unlink the lock file; False if somebody holds its flock, so that it must stay."""
    with contextlib.suppress(OSError):
        fd = _take(path)
        if fd is None:
            return False
        path.unlink()
        os.close(fd)
    return True


def _take(path: Path, create: int = 0) -> int | None:
    """Flock the file at path; None if another process holds it or has just removed it."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | create, 0o600)
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
