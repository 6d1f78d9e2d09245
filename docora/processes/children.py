"""One child of the supervisor: how it is started, logged, and how long to wait before it is started again."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from docora.env import BASE_DIR
from docora.processes.marks import MARK

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
STEADY_AFTER = 60.0
"""Seconds after which a child counts as healthy, so that its next death starts with the first pause."""
LOG_LIMIT = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Program:
    """What a child runs. The command gets the child's mark, which differs with every start."""

    name: str
    command: Callable[[str], Sequence[str]]
    inherits: tuple[int, ...] = ()


@dataclass(slots=True)
class Child:
    """A program that is started again and again under one name."""

    program: Program
    run: str
    log: Path
    process: "subprocess.Popen[bytes] | None" = None
    starts: int = 0
    started_at: float = 0.0
    start_again_at: float = 0.0
    pause: float = FIRST_PAUSE

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def mark(self) -> str:
        return f"{self.run}.{self.name}.{self.starts}"

    def start(self) -> "subprocess.Popen[bytes]":
        """Start it in a session of its own, so that a Ctrl-C in the terminal does not reach it."""
        self.starts += 1
        self.keep_log_bounded()
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.program.command(self.mark),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment(self.mark),
                pass_fds=self.program.inherits,
                start_new_session=True,
            )
        self.started_at = time.monotonic()
        return self.process

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def has_just_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def how_it_ended(self) -> str:
        status = self.process.returncode if self.process else None
        return (
            f"was killed by {signal.Signals(-status).name}" if status and status < 0 else f"ended with status {status}"
        )

    def terminate(self) -> None:
        if self.process:
            self.process.terminate()

    def plan_next_start(self) -> float:
        """Forget the process that ended; returns the pause before the next one."""
        self.process = None
        now = time.monotonic()
        if now - self.started_at >= STEADY_AFTER:
            self.pause = FIRST_PAUSE
        pause, self.pause = self.pause, min(self.pause * 2, LONGEST_PAUSE)
        self.start_again_at = now + pause
        return pause

    def is_due(self) -> bool:
        return self.process is None and time.monotonic() >= self.start_again_at

    def keep_log_bounded(self) -> None:
        """Keep one older log, by copying: the child goes on appending to the file that it has open."""
        if self.log.exists() and self.log.stat().st_size > LOG_LIMIT:
            # A full disk is the moment to let go of logs, not to fall over them.
            with contextlib.suppress(OSError):
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)


def environment(mark: str) -> dict[str, str]:
    """The supervisor's own environment, with the project importable from every working directory."""
    paths = [str(BASE_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {MARK: mark, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
