"""`manage.py rqworker`: which queues a worker serves."""

import pytest

from docora.management.commands.rqworker import _served


@pytest.mark.parametrize(
    ("named", "served"),
    [
        ((), ("urgent", "snapshots", "deliveries", "deliveries-slow")),
        (("snapshots", "deliveries"), ("urgent", "snapshots", "deliveries")),
        (("deliveries", "urgent"), ("urgent", "deliveries")),
        (("deliveries-slow",), ("deliveries-slow",)),
        (("urgent",), ("urgent",)),
    ],
)
def test_a_worker_of_snapshots_or_deliveries_serves_hooks_first(
    named: tuple[str, ...], served: tuple[str, ...]
) -> None:
    assert _served(named, only=False) == served


def test_a_worker_can_be_kept_to_the_queues_named() -> None:
    assert _served(("snapshots",), only=True) == ("snapshots",)
