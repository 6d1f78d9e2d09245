"""Reads in a thread of its own, so that a database or disk that hangs does not hold up the answer."""

import logging
import threading
from collections.abc import Callable, Iterable

from prometheus_client import Metric

log = logging.getLogger("docora.metrics")


class _Reading:
    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read
        self.found: list[Metric] | None = None
        # A daemon: a reading that never ends must not keep the process from ending.
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.found = list(self._read())
        except Exception as error:  # whatever it is, the other parts are still to be shown
            log.warning("Metrics are missing: %s", error)


class PatientReader:
    """One reading at a time: requests that come meanwhile, also after a time-out, wait for the one under way."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._reading: _Reading | None = None

    def read(self, *, seconds: float) -> list[Metric] | None:
        """None if it failed, or is not finished by then."""
        with self._lock:
            if self._reading is None or not self._reading.thread.is_alive():
                self._reading = _Reading(self._read)
            reading = self._reading
        reading.thread.join(seconds)
        return reading.found
