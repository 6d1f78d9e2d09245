"""Work in a process that ends with it, and so leaves nothing in the memory of this one."""

import multiprocessing
import os
from collections.abc import Callable

from django.db import connections

from docora.processes import parent_death

_FORK = multiprocessing.get_context("fork")


def outcome_of(work: Callable[[], str]) -> str:
    """What `work` returns when it is called in a fork; or, if the fork does not get so far, how it ended."""
    connections.close_all()  # two processes on one connection would read each other's answers
    receiver, sender = _FORK.Pipe(duplex=False)
    parent = os.getpid()

    def send() -> None:
        parent_death.end_with(parent)
        sender.send(work())

    process = _FORK.Process(target=send)
    process.start()
    sender.close()
    try:
        outcome = str(receiver.recv())
    except EOFError:
        outcome = ""
    process.join()
    receiver.close()
    return f"its process ended with status {process.exitcode}" if process.exitcode else outcome
