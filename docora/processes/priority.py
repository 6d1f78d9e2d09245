"""How much of the processor a process gets beside others, where it is short."""

import os
import time
from pathlib import Path

_TRIES = 50


def give_way(niceness: int) -> None:
    """Let other processes go first.

    Linux may share the processor between sessions and not between processes (autogroups, on by default in most
    distributions). A niceness counts only within its session then, and every child of the supervisor has a session of
    its own, so the session gets the niceness too.
    """
    os.nice(niceness)
    for _ in range(_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(niceness))
        except BlockingIOError:
            time.sleep(0.1)  # from all users but root, Linux takes one such change in a tenth of a second
        except OSError:
            return  # sessions are not groups here
        else:
            return
