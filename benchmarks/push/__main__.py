"""`python -m benchmarks.push`: measure, and print a table for each database."""

import argparse
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.path import report
from benchmarks.path.bench import FULL, QUICK, Bench
from benchmarks.path.postgres import Postgres
from benchmarks.path.report import FAILED, MISSED, Goal, Result
from benchmarks.path.rows import Row
from benchmarks.path.stage import NotDelivered, Wrong
from benchmarks.push import burst, pushes


def rows(*, quick: bool) -> dict[str, Row]:
    alone, beside = (10, 5) if quick else (200, 100)
    many, hooks = (5, 50) if quick else (50, 500)
    title = "hook → first webhook, 1 file changed"
    return {
        "idle-p50": Row(f"{title}, idle, p50", Goal(limit=0.25, of="s"), partial(pushes.idle, pushes=alone, share=0.5)),
        "idle-p99": Row(f"{title}, idle, p99", Goal(limit=1, of="s"), partial(pushes.idle, pushes=alone, share=0.99)),
        "busy-p99": Row(
            f"{title}, beside first syncs and 5 endpoints that hang, p99",
            Goal(limit=2, of="s"),
            partial(pushes.busy, pushes=beside),
        ),
        "burst-answers": Row(
            f"{hooks} hooks within a second: the slowest answer",
            Goal(limit=100, of="ms"),
            partial(burst.answers, repositories=many, hooks=hooks),
        ),
        "burst-looks": Row(
            f"{hooks} hooks within a second: the most looks at one of {many} repositories",
            Goal(limit=2, of="looks"),
            partial(burst.looks, repositories=many, hooks=hooks),
        ),
    }


def main() -> None:
    # Nothing that was started here outlives an interruption.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.push", description=__doc__)
    parser.add_argument(
        "--rows", nargs="+", default=[], metavar="ROW", help=f"only these of {', '.join(rows(quick=True))}"
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="docora-bench-") as folder:
        report.show(list(_results(Path(folder), options)))


def _results(folder: Path, options: argparse.Namespace) -> Iterator[Result]:
    (folder / "templates").mkdir()
    bench = Bench(
        folder / "run",
        folder / "templates",
        postgres=Postgres(folder / "server") if options.database == "postgresql" else None,
        sizes=QUICK if options.quick else FULL,
        patience=60,
    )
    try:
        for name, row in rows(quick=options.quick).items():
            if not options.rows or name in options.rows:
                yield _result(bench, name, row, options.database)
    finally:
        bench.close()


def _result(bench: Bench, name: str, row: Row, database: str) -> Result:
    try:
        result = Result.of(name, row.title, database, row.goal, row.measure(bench))
    except (NotDelivered, Wrong, RuntimeError) as error:
        verdict = MISSED if isinstance(error, NotDelivered) else FAILED
        result = Result(
            row=name, title=row.title, database=database, goal=str(row.goal), verdict=verdict, detail=str(error)
        )
    print(" | ".join(filter(None, result.cells())), flush=True)
    return result


if __name__ == "__main__":
    main()
