"""Finds and kills what a run of the supervisor, or one child of it, has left running.

The environment of each process names its run: `run` for the supervisor and its forks, `run.name.start` for programs
that they execute, such as Valkey and git. This survives an orphan's adoption and a session of its own.
A scope is such a mark or the beginning of one. Forks show the environment with which the supervisor was executed, so
the forks of one child are found by their session instead, which is the child's.
"""

import logging
import os
import signal
import time
from collections.abc import Iterable

import psutil

from docora.processes.mark import MARK

log = logging.getLogger("docora.processes")

# Seconds. A process that waits for a disk which does not answer cannot be killed before it does.
_KILLED_WITHIN = 10.0


def is_within(mark: str, scope: str) -> bool:
    return mark == scope or mark.startswith(f"{scope}.")


def find(scope: str, *, session: int | None = None, sparing: str | None = None) -> list[psutil.Process]:
    """The living processes of scope or session, without those of sparing and without the caller."""
    return [process for process in psutil.process_iter() if _belongs(process, scope, session, sparing)]


def _belongs(process: psutil.Process, scope: str, session: int | None, sparing: str | None) -> bool:
    try:
        mark = str(process.environ().get(MARK, ""))
        found = is_within(mark, scope) or (session is not None and os.getsid(process.pid) == session)
        spared = process.pid == os.getpid() or (sparing is not None and is_within(mark, sparing))
        return found and not spared and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, OSError):  # gone in the meantime, or another user's
        return False


def end(scope: str, *, patience: float) -> None:
    """Ask scope to end, and kill what has not after patience seconds."""
    _send(find(scope), signal.SIGTERM)
    deadline = time.monotonic() + patience
    while find(scope) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(scope)


def kill(scope: str, *, session: int | None = None, sparing: str | None = None) -> None:
    """Return when no such process is left, or none can be killed; also those are killed that are forked meanwhile."""
    deadline = time.monotonic() + _KILLED_WITHIN
    while processes := find(scope, session=session, sparing=sparing):
        if time.monotonic() > deadline:
            log.error("These processes cannot be killed: %s", ", ".join(str(each.pid) for each in processes))
            return
        # Stopped first: a worker that sees its horse die would count the job as failed.
        _send(processes, signal.SIGSTOP)
        _send(processes, signal.SIGKILL)
        time.sleep(0.02)


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue
