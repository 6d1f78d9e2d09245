"""How much a database reads to answer a statement: counted, not timed.

On SQLite, the steps of its virtual machine, some ten for each row; on PostgreSQL, the rows and pages that the plan of
each statement reads. A scan of a table of 100,000 rows is several hundred thousand steps, or over 100,000 rows.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

# Steps of SQLite for which PostgreSQL reads about one row or page.
STEPS_PER_ROW = 10
# Steps after which SQLite calls Python, which costs more than the steps: often enough for bounds of 50,000.
_EVERY = 1000
_PLANNED = ("SELECT", "INSERT", "UPDATE", "DELETE", "(SELECT", "WITH")


class Work:
    """The statements that ran in a block, each with what it cost in steps of SQLite."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, int]] = []

    @property
    def most(self) -> tuple[int, str]:
        return max(((cost, sql) for sql, cost in self.statements), default=(0, ""))

    @property
    def total(self) -> int:
        return sum(cost for _, cost in self.statements)


@contextmanager
def counted() -> Iterator[Work]:
    work = Work()
    with _steps_counted(work) if connection.vendor == "sqlite" else _plans_analyzed(work):
        yield work


@contextmanager
def _steps_counted(work: Work) -> Iterator[None]:
    """Rows are fetched after the statement was executed: until the next one, steps count for this one."""

    def step() -> int:
        if work.statements:
            sql, cost = work.statements[-1]
            work.statements[-1] = (sql, cost + _EVERY)
        return 0

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        work.statements.append((sql, 0))
        return execute(sql, params, many, context)

    connection.ensure_connection()
    connection.connection.set_progress_handler(step, _EVERY)
    try:
        with connection.execute_wrapper(note):
            yield
    finally:
        connection.ensure_connection()
        connection.connection.set_progress_handler(None, 0)


@contextmanager
def _plans_analyzed(work: Work) -> Iterator[None]:
    """Each statement runs twice: once with its plan, and taken back; then as it was meant."""

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
        if sql.lstrip().startswith(_PLANNED) and not many:
            work.statements.append((sql, STEPS_PER_ROW * _rows_and_pages(sql, params)))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield


def _rows_and_pages(sql: str, params: Any) -> int:
    connection.ensure_connection()
    with connection.connection.transaction(force_rollback=True), connection.connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
        (found,) = cursor.fetchone()
    plan = (found if isinstance(found, list) else json.loads(found))[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] + _rows_read(plan))


def _rows_read(node: dict[str, Any]) -> float:
    discarded = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
    here: float = (node["Actual Rows"] + discarded) * node["Actual Loops"]
    return here + sum(_rows_read(child) for child in node.get("Plans", []))
