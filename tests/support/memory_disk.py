"""Temporary files in memory, where the system offers that: thousands of small repositories are made and removed."""

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")
# Several times of what the tests have at any moment.
ENOUGH = 4 << 30


def use_for_temporary_files() -> None:
    """In this process and in those that it starts, unless somebody has said where to put them."""
    if "TMPDIR" not in os.environ and _is_usable():
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # it may have been found out already


def _is_usable() -> bool:
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return False
    runs_programs = not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
    return runs_programs and shutil.disk_usage(MEMORY).free > ENOUGH
