"""How large the clones are: measured by a worker, which sees the volume, and read by the console, which need not."""

import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import redis
from django.utils import timezone

from repositories import messages
from repositories.base import queue
from repositories.git import clones
from repositories.models import Repository

_KEY = "docora:clone-sizes"
_AGE = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Bytes, and when they were counted."""

    size: int
    at: datetime


def total() -> Measured | None:
    """What all clones take; asks for a new measurement when the last one is old. Raises RedisError."""
    measured = _read("total")
    if measured is None or (timezone.now() - measured.at).total_seconds() > _AGE:
        messages.measure_clones()
    return measured


def of(repository: Repository) -> Measured | None:
    """None where it is not known, or Redis does not answer."""
    try:
        return _read(repository.clone_key)
    except redis.RedisError:
        return None


def measure(_: None = None) -> None:
    """Count every clone that a repository has. Started by a message; see repositories/messages.py."""
    keys = set(Repository.objects.values_list("clone_key", flat=True).iterator())
    sizes = {key: clones.usage(key).bytes for key in keys}
    now = time.time()
    fields: dict[Any, Any] = {key: json.dumps([size, now]) for key, size in sizes.items() if size}
    fields["total"] = json.dumps([sum(sizes.values()), now])
    with queue.connection().pipeline() as pipeline:
        pipeline.delete(_KEY)
        pipeline.hset(_KEY, mapping=fields)
        pipeline.execute()


def _read(field: str) -> Measured | None:
    value = queue.connection().hget(_KEY, field)
    if value is None:
        return None
    size, at = json.loads(value)
    return Measured(size=size, at=datetime.fromtimestamp(at, UTC))
