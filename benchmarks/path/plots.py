"""`python -m benchmarks.path.plots RESULTS.json FOLDER`: the curves of docs/performance.md, as SVG files.

Time of a one-file change against files, first sync against files, and CPU of an hour's looks against repositories. Both
axes are logarithmic: a straight line that rises is a cost that grows with the size, a flat one is a cost that does not.
"""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 400, 70, 40, 150, 50
_COLOURS = ("#2563eb", "#16a34a", "#9ca3af", "#d97706")
_FILES = {"small": 100, "medium": 16_000, "large": 100_000}
# Each repository is looked at every RESCAN_INTERVAL, by default 300 s.
_LOOKS_PER_HOUR = 12

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: Points


def main(results: Path, folder: Path) -> None:
    rows = json.loads(results.read_text())["rows"]
    folder.mkdir(parents=True, exist_ok=True)
    plots = {
        "change": _svg("One changed file, look to acknowledgement", "files", "s", _by_files(rows, "change")),
        "first-sync": _svg("First sync", "files", "s", _by_files(rows, "first")),
        "looks": _svg("CPU of an hour's unchanged looks", "repositories", "s", _looks(rows)),
    }
    for name, text in plots.items():
        (folder / f"{name}.svg").write_text(text)


def _by_files(rows: list[dict[str, Any]], kind: str) -> list[Line]:
    lines = []
    for database in dict.fromkeys(row["database"] for row in rows):
        found = {row["row"]: row for row in rows if row["database"] == database and row["ours"] is not None}
        measured = [(files, found[f"{kind}-{name}"]) for name, files in _FILES.items() if f"{kind}-{name}" in found]
        lines.append(Line(f"Docora, {database}", [(files, row["ours"]) for files, row in measured]))
        bare = [(files, row["reference"]) for files, row in measured if row["reference"]]
        lines.append(Line(f"bare, {database}", bare))
    return lines


def _looks(rows: list[dict[str, Any]]) -> list[Line]:
    """The cost of one look does not depend on how many there are, so the line is drawn from it."""
    lines = []
    for row in rows:
        if row["row"] == "unchanged-cpu" and row["ours"] is not None:
            hour = row["ours"] / 1000 * _LOOKS_PER_HOUR
            lines.append(Line(row["database"], [(count, count * hour) for count in (10, 100, 1000, 10_000)]))
    return lines


def _svg(title: str, x_name: str, unit: str, lines: list[Line]) -> str:
    lines = [line for line in lines if line.points]
    xs = [x for line in lines for x, _ in line.points] or [1.0]
    ys = [y for line in lines for _, y in line.points] or [1.0]
    x_axis, y_axis = _decades(xs), _decades(ys)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - math.log10(x_axis[0])) / (math.log10(x_axis[-1] / x_axis[0]) or 1)
        up = (math.log10(y) - math.log10(y_axis[0])) / (math.log10(y_axis[-1] / y_axis[0]) or 1)
        return (
            _LEFT + across * (_WIDTH - _LEFT - _RIGHT),
            _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM),
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
        ' font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{title}</text>',
    ]
    parts += _grid(x_axis, y_axis, place, x_name, unit)
    for number, line in enumerate(lines):
        parts += _draw(line, _COLOURS[number % len(_COLOURS)], number, [place(x, y) for x, y in line.points])
    return "\n".join([*parts, "</svg>\n"])


def _decades(values: Iterable[float]) -> list[float]:
    values = list(values)
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def _grid(x_axis: list[float], y_axis: list[float], place: Any, x_name: str, unit: str) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for x in x_axis:
        across, _ = place(x, y_axis[0])
        parts.append(f'<path d="M{across:.0f} {_TOP}V{bottom}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{across:.0f}" y="{bottom + 18}" text-anchor="middle">{x:,.0f}</text>')
    for y in y_axis:
        _, up = place(x_axis[0], y)
        parts.append(f'<path d="M{_LEFT} {up:.0f}H{right}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{up + 4:.0f}" text-anchor="end">{y:g} {unit}</text>')
    middle = (_LEFT + right) / 2
    return [*parts, f'<text x="{middle:.0f}" y="{_HEIGHT - 12}" text-anchor="middle">{x_name}</text>']


def _draw(line: Line, colour: str, number: int, places: list[tuple[float, float]]) -> list[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    across, down = _WIDTH - _RIGHT + 12, _TOP + 20 * number
    return [
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places),
        f'<path d="M{across} {down}h16" stroke="{colour}" stroke-width="2"/>',
        f'<text x="{across + 22}" y="{down + 4}">{line.label}</text>',
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
