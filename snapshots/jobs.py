"""What messages start in this room, by dotted name: see repositories/messages.py."""

import math

from rq import Retry, get_current_job
from rq.timeouts import JobTimeoutException

from repositories.base import queue
from repositories.jobs import job_id
from repositories.jobs import purge_clone as purge_clone  # its name in messages that were queued before 0.2
from repositories.models import App
from repositories.repo_lock.retry import retry_when_locked
from snapshots import dry_run, hinted, reconcile
from snapshots.delivery import notices, tell


@queue.one_round_at_a_time
@retry_when_locked
def take_snapshot(repository_id: int) -> Retry | None:
    return _again(hinted.look_in_turn(repository_id, job_id=job_id()))


@queue.one_round_at_a_time
@retry_when_locked
def look_now(repository_id: int) -> Retry | None:
    return _again(hinted.look(repository_id, job_id=job_id()))


@retry_when_locked
def deliver(watch_id: int) -> Retry | None:
    try:
        return _again(tell.deliver(watch_id, job_id=job_id(), lane=_lane()))
    except JobTimeoutException:
        if _lane() != queue.URGENT:
            raise
        tell.continue_in_ordinary_lane(watch_id)
        return None


@retry_when_locked
def measure(sealed_question: str) -> None:
    dry_run.measure(dry_run.Question.unseal(sealed_question), job_id=job_id())


@retry_when_locked
def reconcile_all(_: None = None) -> None:
    reconcile.run(job_id=job_id())


def announce_failure(repository_id: int) -> None:
    notices.announce_failure(repository_id)


def announce_refusal(watch_id: int) -> None:
    notices.announce_refusal(watch_id)


def announce_recovery(repository_id: int) -> None:
    notices.announce_recovery(repository_id)


def send_notice(subject: tuple[str, int]) -> Retry | None:
    kind, watch_id = subject
    return _again(notices.send(notices.Kind(kind), watch_id, lane=_lane()))


def send_complete(watch_id: int) -> Retry | None:
    return _again(tell.send_complete(watch_id, job_id=job_id(), lane=_lane()))


def resume_app(app_id: int) -> None:
    tell.resume(App.objects.get(pk=app_id))


def mail_disabled(app_id: int) -> Retry | None:
    return _again(notices.mail_disabled(App.objects.get(pk=app_id), attempt=_attempt()))


def _lane() -> str:
    job = get_current_job()
    return job.origin if job else queue.DELIVERIES


def _attempt() -> int:
    job = get_current_job()
    return 1 + ((job.number_of_retries or 0) if job else 0)


def _again(pause: float | None) -> Retry | None:
    """A job that is to run again keeps its id, so it stays the one pending job of its kind. No pause: it queues up."""
    return None if pause is None else Retry(max=1_000_000, interval=math.ceil(pause))
