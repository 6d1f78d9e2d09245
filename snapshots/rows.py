"""Many rows in one statement, without a model instance for each: what thousands of answers a second need."""

from collections.abc import Sequence
from typing import Any

from django.db import connection, models
from django.utils import timezone


def now() -> Any:
    """The time as the database takes it."""
    return connection.ops.adapt_datetimefield_value(timezone.now())


def insert(
    model: type[models.Model],
    fields: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    instead_of: Sequence[str] = (),
) -> None:
    """Insert rows of these fields; where one of the same `instead_of` is there, it is overwritten."""
    if not rows:
        return
    quote, meta = connection.ops.quote_name, model._meta
    columns = {name: quote(str(meta.get_field(name).column)) for name in fields}  # type: ignore[union-attr]
    places = ", ".join(["(" + ", ".join(["%s"] * len(fields)) + ")"] * len(rows))
    statement = f"INSERT INTO {quote(meta.db_table)} ({', '.join(columns.values())}) VALUES {places}"  # noqa: S608  names of our own
    if instead_of:
        others = ", ".join(f"{columns[name]} = EXCLUDED.{columns[name]}" for name in fields if name not in instead_of)
        statement += f" ON CONFLICT ({', '.join(columns[name] for name in instead_of)}) DO UPDATE SET {others}"
    with connection.cursor() as cursor:
        cursor.execute(statement, [value for row in rows for value in row])
