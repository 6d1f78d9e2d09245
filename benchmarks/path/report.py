"""One line per row: what was measured, beside what, against which goal, and whether it holds."""

import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.path import usage
from benchmarks.path.service import ROOT

OK, MISSED, NO_GOAL, FAILED = "ok", "MISSED", "no goal", "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A limit for the ratio, or, where there is nothing to compare with, for the number itself."""

    limit: float
    of: str = "ratio"
    at_least: bool = False

    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.limit:g}{' x' if self.of == 'ratio' else f' {self.of}'}"

    def is_met(self, value: float) -> bool:
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one row measured: ours and the reference in the same unit."""

    ours: float
    reference: float | None = None
    unit: str = "s"
    detail: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.reference if self.reference else None


def middle_of(rounds: Iterable[Callable[[], Outcome]]) -> Outcome:
    """The one with the middle ratio, of the rounds that other machines on the same host disturbed least: those beside
    which they took at most a few percent of the processors, or the one beside which they took least."""
    found: list[tuple[float, Outcome]] = []
    for measure in rounds:
        stealing = usage.Stolen()
        outcome = measure()
        found.append((stealing.share, outcome))
    limit = max(usage.DISTURBED, min(share for share, _ in found))
    kept = sorted((outcome.ratio or 0, number) for number, (share, outcome) in enumerate(found) if share <= limit)
    _, chosen = kept[len(kept) // 2]
    every = ", ".join(f"{outcome.ratio or 0:.2f} x beside {share:.0%}" for share, outcome in found)
    outcome = found[chosen][1]
    return replace(outcome, detail=f"{outcome.detail}; rounds, beside what other machines took: {every}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    row: str
    title: str
    database: str
    goal: str
    verdict: str
    ours: float | None = None
    reference: float | None = None
    unit: str = "s"
    ratio: float | None = None
    detail: str = ""
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Processes that wanted a processor in the last minute; the benchmark itself is among them."""

    @classmethod
    def of(cls, row: str, title: str, database: str, goal: Goal | None, outcome: Outcome) -> "Result":
        return cls(
            row=row,
            title=title,
            database=database,
            goal=str(goal) if goal else "",
            verdict=_verdict(goal, outcome),
            ours=outcome.ours,
            reference=outcome.reference,
            unit=outcome.unit,
            ratio=outcome.ratio,
            detail=outcome.detail,
        )

    def cells(self) -> tuple[str, ...]:
        return as_cells(asdict(self))


def as_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Of a result, also of a saved one."""
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} x"
    ours, reference = _number(row["ours"], row["unit"]), _number(row["reference"], row["unit"])
    return row["title"], ours, reference, ratio, row["goal"], row["verdict"], row["detail"]


def _verdict(goal: Goal | None, outcome: Outcome) -> str:
    if goal is None:
        return NO_GOAL
    value = outcome.ratio if goal.of == "ratio" else outcome.ours
    return OK if value is not None and goal.is_met(value) else MISSED


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "s" and value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:,.2f} {unit}" if value < 100 else f"{value:,.0f} {unit}"


def show(results: list[Result]) -> None:
    for database in dict.fromkeys(result.database for result in results):
        table = Table("row", "ours", "reference", "ratio", "goal", "verdict", "detail", title=database, show_lines=True)
        for result in results:
            if result.database == database:
                table.add_row(*result.cells())
        Console(width=170).print(table)
    missed = [f"{result.row} ({result.database})" for result in results if result.verdict in {MISSED, FAILED}]
    print(f"Missed: {', '.join(missed)}" if missed else f"{len(results)} rows, none missed.")


def save(results: list[Result], path: Path, started: datetime) -> None:
    content = {
        "started": started.isoformat(timespec="seconds"),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _output("git", "rev-parse", "HEAD"),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}",
        "git": _output("git", "--version"),
        "rows": [asdict(result) for result in results],
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
