"""Trying a watch again: what it waits for may be the git host as well as the app's endpoint."""

from repositories.models import Watch
from repositories.watches import ask_for_snapshot
from snapshots.delivery.redelivery import retry_now


def retry(watch: Watch) -> None:
    retry_now(watch)
    ask_for_snapshot(watch.repository)
