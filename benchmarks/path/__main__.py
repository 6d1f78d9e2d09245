"""`python -m benchmarks.path`: measure, print a table for each database, and save the numbers if told."""

import argparse
import fnmatch
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.path import page, report
from benchmarks.path.bench import FULL, QUICK, Bench, Sizes
from benchmarks.path.postgres import Postgres
from benchmarks.path.real import rows_for
from benchmarks.path.report import FAILED, MISSED, Result
from benchmarks.path.rows import Row, all_rows
from benchmarks.path.stage import NotDelivered

_DATABASES = ("sqlite", "postgresql")


def main() -> None:
    # Also where a shell has SIGINT ignored: nothing that was started here outlives an interruption.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    options = _options()
    if options.page:
        page.FOLDER.mkdir(exist_ok=True)
        options.json = page.RESULTS
    sizes = QUICK if options.quick else FULL
    rows = _chosen(options.rows, sizes)
    started = datetime.now(UTC)
    print(f"Load at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.", flush=True)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="docora-bench-") as folder:
        try:
            for result in _run(Path(folder), rows, sizes, options):
                results.append(result)
                if options.json:  # after each row: what is interrupted is not lost
                    report.save(results, options.json, started)
        except KeyboardInterrupt:
            print("Interrupted.")
    report.show(results)
    if options.page:
        page.write()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.path",
        description="From a commit to the last acknowledgement, measured from outside, beside bare git and a bare"
        " HTTP client in the same run.",
        epilog=f"Rows: {', '.join(all_rows(FULL))}. With BENCH_REPOSITORIES=FOLDER, two more for each bare clone in"
        " that folder: real-NAME-first and real-NAME-replay.",
    )
    parser.add_argument("--rows", nargs="+", default=["*"], metavar="ROW", help="only these; change-* and such work")
    parser.add_argument("--database", choices=(*_DATABASES, "both"), default="both", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the results here")
    parser.add_argument("--page", action="store_true", help="save them in docs/, and write table and plots there")
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        metavar="SECONDS",
        help="one change may take so long before its row gives up, a first sync five times as long (%(default)g)",
    )
    return parser.parse_args()


def _chosen(patterns: list[str], sizes: Sizes) -> dict[str, Row]:
    rows = all_rows(sizes)
    memory = {"memory": rows.pop("memory")}  # last: it tells what the others have seen
    if real := os.environ.get("BENCH_REPOSITORIES"):
        rows |= rows_for(Path(real), sizes)
    rows |= memory
    unknown = [pattern for pattern in patterns if not fnmatch.filter(rows, pattern)]
    if unknown:
        raise SystemExit(f"no such row: {', '.join(unknown)}; there are {', '.join(rows)}")
    return {name: row for name, row in rows.items() if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)}


def _run(folder: Path, rows: dict[str, Row], sizes: Sizes, options: argparse.Namespace) -> Iterator[Result]:
    (folder / "templates").mkdir()
    postgres = Postgres(folder / "server")
    for database in _DATABASES if options.database == "both" else (options.database,):
        bench = Bench(
            folder / database,
            folder / "templates",
            postgres=postgres if database == "postgresql" else None,
            sizes=sizes,
            patience=options.patience,
        )
        try:
            for name, row in rows.items():
                yield _measure(bench, name, row, database)
        finally:
            bench.close()


def _measure(bench: Bench, name: str, row: Row, database: str) -> Result:
    started = time.monotonic()
    goal = str(row.goal or "")
    try:
        result = Result.of(name, row.title, database, row.goal, row.measure(bench))
    except NotDelivered as error:
        result = Result(row=name, title=row.title, database=database, goal=goal, verdict=MISSED, detail=str(error))
    except Exception as error:  # a row that is broken must not take the others with it
        bench.close()
        detail = f"{type(error).__name__}: {error}"
        result = Result(row=name, title=row.title, database=database, goal=goal, verdict=FAILED, detail=detail)
    print(f"[{database}, {time.monotonic() - started:.0f} s] {' | '.join(filter(None, result.cells()))}", flush=True)
    return result


if __name__ == "__main__":
    main()
