"""How long changes take from the notice to the last acknowledgement: of the newest complete commits of the last day.

Read from the index of times, newest first, and never more than `_MOST` rows, however many there are.
"""

import math
from dataclasses import dataclass
from datetime import timedelta

from django.db.models import QuerySet
from django.utils import timezone

from docora.console.display import NOTHING, milliseconds, plural
from repositories.models import App
from snapshots.models import Completion

_WINDOW = timedelta(days=1)
_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """In milliseconds; None where no change was acknowledged."""

    commits: int
    median: int | None
    p95: int | None
    worst: int | None

    @property
    def text(self) -> str:
        if not self.commits:
            return NOTHING
        return f"half within {milliseconds(self.median)}, {self.detail}"

    @property
    def detail(self) -> str:
        if not self.commits:
            return "no change in the last day"
        commits = plural(self.commits, "commit")
        return f"95 % within {milliseconds(self.p95)}, worst {milliseconds(self.worst)}, of {commits}"


def overall() -> Latency:
    return _of(Completion.objects.all())


def of_app(app: App) -> Latency:
    return _of(Completion.objects.filter(app=app))


def _of(completions: "QuerySet[Completion]") -> Latency:
    lately = completions.filter(completed_at__gte=timezone.now() - _WINDOW, latency_ms__isnull=False)
    newest = lately.order_by("-completed_at").values_list("latency_ms", flat=True)[:_MOST]
    found = sorted(latency for latency in newest if latency is not None)
    return Latency(
        commits=len(found), median=_rank(found, 0.5), p95=_rank(found, 0.95), worst=found[-1] if found else None
    )


def _rank(found: list[int], share: float) -> int | None:
    """The smallest that at least this share does not exceed."""
    return found[math.ceil(share * len(found)) - 1] if found else None
