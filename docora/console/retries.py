"""Trying a watch again: what it waits for may be the git host as well as the app's endpoint."""

from repositories.models import Watch
from repositories.services import ask_for_snapshot
from snapshots.redelivery import retry_now


def retry(watch: Watch) -> None:
    ask_for_snapshot(watch.repository)
    retry_now(watch)
