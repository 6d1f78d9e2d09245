"""Three curves of docs/performance.md, as SVG files: see `page.py`.

Time of a one-file change against files, first sync against files, and CPU of an hour's looks against repositories. Both
axes are logarithmic: a straight line that rises is a cost that grows with the size, a flat one is a cost that does not.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 640, 400, 70, 40, 150, 50
_COLOURS = ("#2563eb", "#93c5fd", "#16a34a", "#86efac")
_FILES = {"small": 100, "medium": 16_000, "large": 100_000}

TITLES = {
    "change": "One changed file, look to acknowledgement",
    "first-sync": "First sync",
    "looks": "CPU of an hour's unchanged looks",
}

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    points: Points


def draw(rows: list[dict[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    looks = sorted(int(row["row"].removeprefix("looks-")) for row in rows if row["row"].startswith("looks-"))
    curves = {
        "change": ("files", _lines(rows, "change", _FILES)),
        "first-sync": ("files", _lines(rows, "first", _FILES)),
        "looks": ("repositories", _lines(rows, "looks", {str(count): count for count in looks})),
    }
    for name, (x_name, lines) in curves.items():
        (folder / f"{name}.svg").write_text(_svg(TITLES[name], x_name, "s", lines))


def _lines(rows: list[dict[str, Any]], kind: str, sizes: dict[str, int]) -> list[Line]:
    """Of the rows kind-NAME: ours and the reference, on each database."""
    lines = []
    for database in dict.fromkeys(row["database"] for row in rows):
        found = {row["row"]: row for row in rows if row["database"] == database and row["ours"]}
        measured = [(size, found[f"{kind}-{name}"]) for name, size in sizes.items() if f"{kind}-{name}" in found]
        lines.append(Line(f"Docora, {database}", [(size, row["ours"]) for size, row in measured]))
        lines.append(
            Line(f"bare, {database}", [(size, row["reference"]) for size, row in measured if row["reference"]])
        )
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
