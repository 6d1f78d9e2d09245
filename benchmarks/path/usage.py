"""What a process and all of its descendants use, read from /proc: cheap enough to look while the clock runs."""

import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_TICKS = os.sysconf("SC_CLK_TCK")
_INTERVAL = 0.2
_GONE = (OSError, ValueError, IndexError)
DISTURBED = 0.05
"""Where other machines take a larger share of the processors, a number of seconds says little of what is measured."""


def family(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    with suppress(*_GONE):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from family(int(child))


def cpu_seconds(pid: int) -> float:
    """Processor time of all of them, with that of the children which have ended."""
    return sum(_cpu(member) for member in family(pid))


def _cpu(pid: int) -> float:
    with suppress(*_GONE):
        # The name in parentheses may hold spaces; the four times stand at 14 to 17.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / _TICKS
    return 0.0


def cpu_of_own_children() -> float:
    """Processor time of the children of this process that have ended: bare git's."""
    times = os.times()
    return times.children_user + times.children_system


def processor_ticks() -> Counter[str]:
    """What all processors have spent their time on since the machine started."""
    words = Path("/proc/stat").read_text().split(maxsplit=9)[1:9]
    kinds = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    return Counter(dict(zip(kinds, map(int, words), strict=True)))


class Stolen:
    """How much of the processors other machines on the same host have taken since this was made."""

    def __init__(self) -> None:
        self._before = processor_ticks()

    @property
    def share(self) -> float:
        ticks = processor_ticks() - self._before
        return ticks["steal"] / (ticks.total() or 1)


def pss(pid: int) -> int:
    """Bytes of all of them, where a page that several processes share counts once in all."""
    return sum(_number(f"/proc/{member}/smaps_rollup", "Pss") for member in family(pid))


def _number(path: str, name: str) -> int:
    with suppress(*_GONE):
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(path).read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


@dataclass(slots=True)
class Peak:
    python: int = 0
    git: int = 0

    def merge(self, other: "Peak") -> None:
        self.python, self.git = max(self.python, other.python), max(self.git, other.git)


def _is_web(pid: int) -> bool:
    """The web does no jobs: its memory is part of what an idle service takes."""
    name = Path(f"/proc/{pid}/comm").read_text()
    return name.startswith("web") or b"gunicorn" in Path(f"/proc/{pid}/cmdline").read_bytes()


class PeakMemory(threading.Thread):
    """The largest resident set that any one process reached: of Python's that do jobs, and of git's apart.

    The kernel keeps the peak, so a look now and then is enough; only what a process does in its last moment is missed.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self.peak = Peak()
        self._over = threading.Event()
        self._looks = threading.Lock()

    def run(self) -> None:
        while not self._over.wait(_INTERVAL):
            with self._looks:
                for member in family(self._pid):
                    self._look_at(member)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For what this process itself measures in milliseconds: a look at all processes takes the interpreter for
        longer."""
        with self._looks:
            yield

    def _look_at(self, pid: int) -> None:
        with suppress(*_GONE):
            program = Path(f"/proc/{pid}/exe").readlink().name
            peak = _number(f"/proc/{pid}/status", "VmHWM")
            if program.startswith("git"):
                self.peak.git = max(self.peak.git, peak)
            elif program.startswith("python") and pid != self._pid and not _is_web(pid):
                self.peak.python = max(self.peak.python, peak)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def let_give_way(pid: int, niceness: int = 10) -> None:
    """Let other sessions go before that of this process, and before its children."""
    os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with suppress(OSError):  # where Linux shares the processors between sessions, a niceness counts only inside of one
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness))
