"""The doors of the queue: what a message by dotted name starts."""

from rq import Retry, get_current_job

from repositories import services as repositories
from repositories.repo_lock_retry import retry_when_locked
from snapshots import delivery, services


@retry_when_locked
def take_snapshot(repository_id: int) -> Retry | None:
    return _again(services.take_snapshot(repository_id, job_id=_job_id()))


@retry_when_locked
def deliver(watch_id: int) -> Retry | None:
    return _again(delivery.deliver(watch_id, job_id=_job_id()))


@retry_when_locked
def purge_clone(clone_key: str) -> None:
    repositories.purge_clone(clone_key, job_id=_job_id())


def _job_id() -> str:
    job = get_current_job()
    return job.id if job else "none"


def _again(pause: float | None) -> Retry | None:
    """A job that is to run again keeps its id, so it stays the one pending job of its kind."""
    return None if pause is None else Retry(max=1_000_000, interval=max(1, round(pause)))
