"""One child of the supervisor: how it is forked and logged, and how long to wait before it is started again."""

import contextlib
import gc
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from docora.processes import parent_death
from docora.processes.mark import MARK
from docora.processes.signals import HANDLED

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
STEADY_AFTER = 60.0
"""Seconds after which a child counts as healthy, so that its next death starts with the first pause."""
LOG_LIMIT = 10 * 1024 * 1024
_FORK = multiprocessing.get_context("fork")


@dataclass(slots=True)
class Child:
    """A function that runs in a fork of the supervisor, and is started again and again under one name.

    The supervisor must have no threads and no open connections when it forks.
    """

    name: str
    run: str
    log: Path
    main: Callable[[str], object]
    """Gets the mark of the process, which differs with every start."""
    leave_supervisor: Callable[[], object]
    """Gives back the supervisor's signal handlers, and closes its files that this child must not keep open."""
    ends_with_supervisor_by: signal.Signals = signal.SIGKILL
    process: BaseProcess | None = None
    starts: int = 0
    started_at: float = 0.0
    start_again_at: float = 0.0
    pause: float = FIRST_PAUSE

    @property
    def mark(self) -> str:
        return f"{self.run}.{self.name}.{self.starts}"

    def start(self) -> None:
        self.starts += 1
        self.keep_log_bounded()
        self.process = _FORK.Process(target=self._work, args=(os.getpid(),))
        # A garbage collection in the child would write to all that is here now, and so copy it.
        gc.freeze()
        # A signal that comes before the fork has handlers of its own would be taken by the supervisor's, and lost.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        self.started_at = time.monotonic()

    def _work(self, supervisor: int) -> None:
        self.leave_supervisor()
        parent_death.end_with(supervisor, self.ends_with_supervisor_by)
        parent_death.end_forks_with_us()
        # A Ctrl-C in the terminal reaches the supervisor alone.
        os.setsid()
        self._redirect_streams()
        os.environ[MARK] = self.mark
        with contextlib.suppress(OSError):  # Linux shows it in `ps -o comm`
            Path("/proc/self/comm").write_text(self.name)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        self.main(self.mark)

    def _redirect_streams(self) -> None:
        with self.log.open("ab") as log, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def exit_status(self) -> int | None:
        """None while it runs, or is not started; negative after a signal."""
        return self.process.exitcode if self.process else None

    def is_running(self) -> bool:
        return self.process is not None and self.exit_status() is None

    def has_just_ended(self) -> bool:
        return self.exit_status() is not None

    def how_it_ended(self) -> str:
        status = self.exit_status()
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
            # On a full disk the copy fails; the log is emptied all the same.
            with contextlib.suppress(OSError):
                shutil.copyfile(self.log, self.log.with_suffix(".log.1"))
            os.truncate(self.log, 0)
