"""Jobs by dotted name, for real workers: each writes down the process that did it."""

import os
import time
from pathlib import Path


def note(journal: str, seconds: float = 0.0) -> None:
    time.sleep(seconds)
    with Path(journal).open("a") as lines:
        lines.write(f"{os.getpid()}\n")


def note_and_fail(journal: str) -> None:
    note(journal)
    raise ZeroDivisionError


def note_and_come_rarely(journal: str) -> None:
    note(journal)


def note_and_fill_memory(journal: str) -> None:
    note(journal)
    assert b"x" * (150 << 20)
