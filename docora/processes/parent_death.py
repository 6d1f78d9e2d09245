"""Lets the kernel end a process when its parent has ended: Linux only, elsewhere these functions do nothing.

The kernel watches the thread that forked, so fork in the main thread. A fork of the process does not inherit the
request; a program that it executes does. Programs that are started with `subprocess`, such as git, never get it: a git
whose worker was killed keeps the file lock of its clone until it has ended by itself.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
if _prctl:
    _prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]

_pid = os.getpid()
_forks_end_with_us = False


def end_with(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """For a process that `parent` has just forked: get this signal when the parent ends."""
    if _prctl:
        _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if os.getppid() != parent:  # it ended before prctl took effect
            os.kill(os.getpid(), number)


def end_forks_with_us() -> None:
    """All that this process forks from now on, and what those fork: work horses, RQ's schedulers, web workers."""
    global _forks_end_with_us
    _forks_end_with_us = True


def _after_fork() -> None:
    global _pid
    parent, _pid = _pid, os.getpid()
    if _forks_end_with_us:
        end_with(parent)


os.register_at_fork(after_in_child=_after_fork)
