"""`python -m benchmarks.path.page`: write the table and the plots of docs/performance.md from the saved results.

`python -m benchmarks.path --page` measures first. The text around the table is written by hand and stays.
"""

import json
import re
from typing import Any

from benchmarks.path import plots
from benchmarks.path.report import as_cells
from benchmarks.path.service import ROOT

PAGE = ROOT / "docs" / "performance.md"
FOLDER = ROOT / "docs" / "performance"
RESULTS = FOLDER / "results.json"
_BEGIN, _END = "<!-- measured: written by benchmarks/path/page.py -->", "<!-- end of what was measured -->"


def write() -> None:
    saved = json.loads(RESULTS.read_text())
    plots.draw(saved["rows"], FOLDER)
    text = PAGE.read_text()
    measured = f"{_BEGIN}\n{_measured(saved)}\n{_END}"
    PAGE.write_text(re.sub(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", lambda _: measured, text, flags=re.DOTALL))


def _measured(saved: dict[str, Any]) -> str:
    loads = [row["load"] for row in saved["rows"]]
    parts = [
        f"Measured on {saved['started'][:10]} at commit `{saved['commit'][:12]}`: {saved['machine']}, {saved['git']}."
        f" Load while it ran: {min(loads):.1f} to {max(loads):.1f}, the benchmark among it."
    ]
    for database in dict.fromkeys(row["database"] for row in saved["rows"]):
        parts.append(f"### {database}\n\n{_table([row for row in saved['rows'] if row['database'] == database])}")
    missed = [f"{row['row']} ({row['database']})" for row in saved["rows"] if row["verdict"] in {"MISSED", "FAILED"}]
    parts.append(f"Missed: {', '.join(missed)}." if missed else "No goal is missed.")
    parts += [f"![{title}](performance/{name}.svg)" for name, title in plots.TITLES.items()]
    return "\n\n".join(parts)


def _table(rows: list[dict[str, Any]]) -> str:
    head = ("row", "Docora", "reference", "ratio", "goal", "verdict", "where it goes")
    lines = [head, ("---",) * len(head), *(as_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


if __name__ == "__main__":
    write()
