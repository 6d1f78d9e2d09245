"""What a command shows on a terminal."""

import os
import pty
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.support.warm_python import Process

# How every colour begins.
COLOUR = "\033["


def on_terminal(command: list[str], folder: Path, environment: Mapping[str, str]) -> str:
    """Run it there to its end; returns all that it showed."""
    variables = {**environment, "TERM": "xterm"}
    return shown_by(
        lambda terminal: subprocess.Popen(
            command, cwd=folder, env=variables, stdin=terminal, stdout=terminal, stderr=terminal
        )
    )


def shown_by(start: Callable[[int], Process], *, until: str = "") -> str:
    """All that a process shows on the terminal that it is started with; `until` it has said that, then interrupted."""
    screen, terminal = pty.openpty()
    process = start(terminal)
    os.close(terminal)
    shown = b""
    while part := _read(screen):
        shown += part
        if until and until.encode() in shown:
            process.send_signal(2)
            until = ""
    os.close(screen)
    process.wait(timeout=60)
    return shown.decode()


def _read(screen: int) -> bytes:
    try:
        return os.read(screen, 65536)
    except OSError:  # Linux: nobody has the terminal open any more
        return b""
