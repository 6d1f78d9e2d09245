"""A step brings an app from one complete commit to the next. What it has taken so far stands on the watch, as JSON."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Self

from django.utils import timezone

from snapshots.changes import Change, Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How many messages the app has acknowledged since its last complete commit, and when the first and the last
    acknowledgement came."""

    created: int = 0
    updated: int = 0
    deleted: int = 0
    first: str = ""
    last: str = ""

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Self:
        """As the watch keeps it. Release 0.1.0 kept `parked` too."""
        return cls(**{name: value for name, value in stored.items() if name != "parked"})

    def after(self, changes: Iterable[Change]) -> "Step":
        told = Counter(change.event for change in changes)
        step = replace(
            self,
            created=self.created + told[Event.CREATE],
            updated=self.updated + told[Event.UPDATE],
            deleted=self.deleted + told[Event.DELETE],
        )
        if not told:
            return step
        now = timezone.now().isoformat()
        return replace(step, first=self.first or now, last=now)

    @property
    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def first_at(self) -> datetime | None:
        return datetime.fromisoformat(self.first) if self.first else None

    @property
    def last_at(self) -> datetime | None:
        return datetime.fromisoformat(self.last) if self.last else None
