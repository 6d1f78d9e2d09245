"""Puts the readings together. A part that does not answer is missing, and `docora_up` says so."""

import platform
from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

import docora
from docora.metrics import database_readings, redis_readings
from docora.metrics.patience import PatientReader

# For each part; Prometheus itself gives up after 10 s.
_PATIENCE = 4.0


class DocoraCollector(Collector):
    def __init__(self) -> None:
        self._parts = {"redis": PatientReader(redis_readings.read), "database": PatientReader(database_readings.read)}

    def describe(self) -> list[Metric]:
        """Nothing: else the registry would read everything once when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "docora_build", "What is running.", {"version": docora.__version__, "python": platform.python_version()}
        )
        up = GaugeMetricFamily("docora_up", "Whether this part could be read in time.", labels=["part"])
        for part, reader in self._parts.items():
            found = reader.read(seconds=_PATIENCE)
            up.add_metric([part], found is not None)
            yield from found or ()
        yield up
