"""What messages start in this room, by dotted name: see messages.py."""

from rq import get_current_job

from repositories import accounts, watches
from repositories.models import Watch
from repositories.repo_lock.retry import retry_when_locked


@retry_when_locked
def purge_clone(clone_key: str) -> None:
    watches.purge_clone(clone_key, job_id=job_id())


def recheck_owner(owner: str) -> None:
    """The GitHub App may read other repositories of this owner than before."""
    if not isinstance(owner, str):
        raise ValueError(f"{owner!r:.200} is not the name of an owner")
    accounts.look_again(Watch.objects.all(), owner=owner)


def job_id() -> str:
    """The id of the job that this process is working on."""
    job = get_current_job()
    return job.id if job else "none"
