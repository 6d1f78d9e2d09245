"""Empties the database after a test that has committed, in a fiftieth of the time of Django's `flush`.

`flush` empties every table, also those without rows, and then makes every permission and role again. Here the few
tables that have rows are emptied, and what the migrations have put into the database is left as it is. If a test has
changed that, or has filled a table with many rows, `flush` does its work.
"""

from typing import Any

from django.core.management import call_command
from django.db import connection, transaction

# PostgreSQL keeps deleted rows for a while; a large table is better truncated, which `flush` does.
_MANY = 1000


class Cleaner:
    """Made after the migrations: what is in the database then is what every test finds."""

    def __init__(self) -> None:
        # Without rows that migrations have inserted: Django's own tests do not find them either.
        _flush()
        self._tables = connection.introspection.django_table_names(only_existing=True, include_views=False)
        self._initial = self._read([table for table, count in self._count().items() if count])

    def clean(self) -> None:
        filled = {table: count for table, count in self._count().items() if count and table not in self._initial}
        if max(filled.values(), default=0) >= _MANY or self._read(list(self._initial)) != self._initial:
            _flush()
            self._initial = self._read(list(self._initial))
            return
        with transaction.atomic(), connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("SET LOCAL session_replication_role = replica")  # checks no foreign key
            else:
                cursor.execute("PRAGMA defer_foreign_keys = ON")
            for table in filled:
                cursor.execute(f"DELETE FROM {_quoted(table)}")  # noqa: S608  a table's name

    def _count(self) -> dict[str, int]:
        """How many rows each table has, counted up to _MANY."""
        counts = [
            f"SELECT '{table}', COUNT(*) FROM (SELECT 1 FROM {_quoted(table)} LIMIT {_MANY}) AS found"  # noqa: S608
            for table in self._tables
        ]
        return dict(_select(" UNION ALL ".join(counts)))

    @staticmethod
    def _read(tables: list[str]) -> dict[str, list[Any]]:
        return {table: sorted(_select(f"SELECT * FROM {_quoted(table)}")) for table in tables}  # noqa: S608


def _flush() -> None:
    call_command("flush", verbosity=0, interactive=False)


def _select(statement: str) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        rows: list[Any] = cursor.fetchall()
        return rows


def _quoted(name: str) -> str:
    return str(connection.ops.quote_name(name))
