"""Trying a watch again: what it waits for may be the git host as well as the app's endpoint."""

from repositories.models import Watch
from repositories.services import request_snapshot
from snapshots.redelivery import retry_now


def retry(watch: Watch) -> None:
    request_snapshot(watch.repository)
    retry_now(watch)
