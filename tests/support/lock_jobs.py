"""Jobs by dotted name, for real workers."""

from pathlib import Path

from rq import get_current_job

from repositories.repo_lock.retry import retry_when_locked
from tests.support.lock_cast import run_git_under_lock


@retry_when_locked
def fetch(journal: str, seconds: float, ttl: float = 60, wait: float = 60) -> None:
    job = get_current_job()
    assert job
    run_git_under_lock(Path(journal), job.id, seconds=seconds, ttl=ttl, wait=wait)


def fail() -> None:
    raise ZeroDivisionError
