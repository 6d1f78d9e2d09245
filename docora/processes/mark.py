"""The mark of a run of `manage.py up` in the environment of its processes, by which they are found when it is gone.

Needs nothing but Python, so that manage.py can set it before it loads Django.
"""

import os
import secrets
import sys

MARK = "DOCORA_PROCESS"


def mark_this_process() -> str:
    """Execute this process once more with a new mark, unless it has one of its own; returns the mark."""
    # Named after the process, which exec keeps: a mark that was inherited is another run's.
    if not os.environ.get(MARK, "").startswith(f"{os.getpid()}-"):
        os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(4)}"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  the same program
    return os.environ[MARK]
