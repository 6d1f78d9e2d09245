"""Faults that a member of the cast shows on purpose, put in place and lifted while it runs."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar


@dataclass(eq=False, kw_only=True)
class Fault:
    """One way to misbehave; in force until it is lifted or has happened `times` times."""

    times: int | None = None
    lifted: threading.Event = field(default_factory=threading.Event, init=False)

    def lift(self) -> None:
        """End it; what hangs because of it goes on."""
        self.lifted.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()


F = TypeVar("F", bound=Fault)


class Faults(Generic[F]):
    """The faults in force; the one put last wins. Safe under concurrency."""

    def __init__(self) -> None:
        self._faults: list[F] = []
        self._lock = threading.Lock()

    def put(self, fault: F) -> F:
        with self._lock:
            self._faults.insert(0, fault)
        return fault

    def take(self, applies: Callable[[F], bool]) -> F | None:
        """The fault that the caller must now show, counted as shown."""
        with self._lock:
            for fault in self._faults:
                if not fault.lifted.is_set() and fault.times != 0 and applies(fault):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def lift_all(self) -> None:
        with self._lock:
            for fault in self._faults:
                fault.lift()
            self._faults.clear()
