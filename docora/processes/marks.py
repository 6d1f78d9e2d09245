"""Finds and ends all processes of one run of the supervisor, however deep they were forked.

Every child carries a mark in its environment, `run.name.start`, which work horses, git children and
web workers inherit. A scope is a mark or the beginning of one: `run` names all of a run, `run.name.start`
one child with all that it started. Unlike parents and process groups, the mark survives an orphan's adoption
and a session of its own.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator

import psutil

MARK = "DOCORA_PROCESS"


def is_within(mark: str, scope: str) -> bool:
    return mark == scope or mark.startswith(f"{scope}.")


def find(scope: str, *, sparing: str | None = None) -> list[psutil.Process]:
    """The living processes of scope without those of sparing and without the caller."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        mark = _mark(process)
        if is_within(mark, scope) and not (sparing and is_within(mark, sparing)):
            found |= {member.pid: member for member in (process, *_descendants(process))}
    found.pop(os.getpid(), None)
    return [process for process in found.values() if _is_alive(process)]


def _mark(process: psutil.Process) -> str:
    try:
        return str(process.environ().get(MARK, ""))
    except (psutil.Error, OSError):  # gone in the meantime, or another user's
        return ""


def _descendants(process: psutil.Process) -> Iterator[psutil.Process]:
    try:
        yield from process.children(recursive=True)
    except psutil.Error:
        return


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def end(scope: str, *, patience: float, sparing: str | None = None) -> None:
    """Ask scope to end, and kill what has not after patience seconds.

    Only the topmost processes are asked: a work horse that is told to end would fail its job.
    """
    send(_topmost(find(scope, sparing=sparing)), signal.SIGTERM)
    deadline = time.monotonic() + patience
    while find(scope, sparing=sparing) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(scope, sparing=sparing)


def _topmost(found: list[psutil.Process]) -> list[psutil.Process]:
    pids = {process.pid for process in found}
    return [process for process in found if _parent(process) not in pids]


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def kill(scope: str, *, sparing: str | None = None) -> None:
    """Kill every process of scope, also those that are forked while this runs."""
    while processes := find(scope, sparing=sparing):
        # Stopped first: a worker that sees its horse die would count the job as failed.
        send(processes, signal.SIGSTOP)
        send(processes, signal.SIGKILL)
        time.sleep(0.02)
