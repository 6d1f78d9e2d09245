"""What a command shows on a terminal."""

import os
import pty
import subprocess
from collections.abc import Mapping
from pathlib import Path

# How every colour begins.
COLOUR = "\033["


def on_terminal(command: list[str], folder: Path, environment: Mapping[str, str], *, until: str = "") -> str:
    """Run it there to its end, or interrupt it as soon as it has said `until`; returns all that it showed."""
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        command, cwd=folder, env={**environment, "TERM": "xterm"}, stdin=terminal, stdout=terminal, stderr=terminal
    )
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
