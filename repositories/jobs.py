"""The doors of the queue into this room."""

from rq import get_current_job

from repositories import watches
from repositories.repo_lock.retry import retry_when_locked


@retry_when_locked
def purge_clone(clone_key: str) -> None:
    watches.purge_clone(clone_key, job_id=job_id())


def job_id() -> str:
    """The id of the job that this process is working on."""
    job = get_current_job()
    return job.id if job else "none"
