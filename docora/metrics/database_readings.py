"""What the database knows, from indexes alone. A number stops at `MOST`, so that a scrape costs the same for ever."""

from collections.abc import Iterator
from typing import Any

from django.db import connection, transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import Parked

MOST = 100_000
# Milliseconds for one query, on PostgreSQL; SQLite's readers wait for nobody.
_STATEMENT_TIMEOUT = 3000

# Each app is in the first class that fits.
_APP_CLASSES = {
    "disabled": Q(disabled_at__isnull=False),
    "failing": Q(failing_since__isnull=False),
    "slow": Q(slow_since__isnull=False),
    "fast": Q(pk__isnull=False),
}


def read() -> Iterator[Metric]:
    """Called in a thread that ends afterwards, so the connection is closed here."""
    try:
        if connection.vendor == "postgresql":
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute(f"SET LOCAL statement_timeout = {_STATEMENT_TIMEOUT}")
                yield from list(_read())
        else:
            yield from _read()
    finally:
        connection.close()


def _read() -> Iterator[Metric]:
    yield _apps()
    yield _gauge("docora_repositories", "Repositories that are watched.", count(repositories()))
    yield _gauge("docora_circuits_open", "Repositories whose circuit is open.", count(open_circuits()))
    yield _gauge("docora_look_overdue_seconds", "How late the look is that has been due for longest.", _overdue())
    yield _watches()
    yield _gauge("docora_parked_files", "Contents that an endpoint refused for themselves.", count(parked()))


def count(rows: "QuerySet[Any, Any]") -> int:
    return rows[:MOST].count()


def repositories() -> "QuerySet[Repository, Any]":
    return Repository.objects.order_by("next_check_at").values("next_check_at")


def open_circuits() -> "QuerySet[Repository, Any]":
    rows = Repository.objects.filter(circuit_open_until__isnull=False)
    return rows.order_by("circuit_open_until").values("circuit_open_until")


def parked() -> "QuerySet[Parked, Any]":
    """Ordered as the index is: else PostgreSQL reads the rows themselves."""
    return Parked.objects.order_by("watch_id", "file_id").values("watch_id", "file_id")


def watches(status: str) -> "QuerySet[Watch, Any]":
    return Watch.objects.filter(status=status).order_by("status").values("status")


def _apps() -> Metric:
    family = GaugeMetricFamily("docora_apps", "Apps by the health of their endpoint.", labels=["class"])
    numbers, others = {}, Q()
    for name, condition in _APP_CLASSES.items():
        numbers[name] = Count("pk", filter=condition & others)
        others &= ~condition
    for name, number in App.objects.order_by("pk")[:MOST].aggregate(**numbers).items():
        family.add_metric([name], number)
    return family


def _watches() -> Metric:
    family = GaugeMetricFamily("docora_watches", "Watches by state.", labels=["status"])
    for status in WatchStatus.values:
        family.add_metric([status], count(watches(status)))
    return family


def _overdue() -> float:
    due = Repository.objects.order_by("next_check_at").values_list("next_check_at", flat=True).first()
    return max(0.0, (timezone.now() - due).total_seconds()) if due else 0.0


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, help_text, value=value)
