"""Many rows in memory: of a first snapshot, hundreds of thousands. Packed, they take less than half."""

import marshal
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])
_BATCH = 500


def batches(items: Iterable[T]) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


class Packed(Generic[Row]):
    """Named tuples of texts, bytes and numbers; read batch by batch, as often as needed."""

    def __init__(self, make: Callable[[Iterable[Any]], Row], rows: Iterable[Row]) -> None:
        self._make = make
        self._batches = [marshal.dumps([tuple(row) for row in batch]) for batch in batches(rows)]

    def __iter__(self) -> Iterator[list[Row]]:
        for batch in self._batches:
            yield [self._make(row) for row in marshal.loads(batch)]  # noqa: S302  written above, in this process
