"""The doors of the queue: what a message by dotted name starts."""

import math

from rq import Retry, get_current_job

from repositories import queue
from repositories import services as repositories
from repositories.dry_run import Question
from repositories.models import App
from repositories.repo_lock_retry import retry_when_locked
from snapshots import delivery, notices, reconcile, services
from snapshots import measure as measuring


@queue.one_round_at_a_time
@retry_when_locked
def take_snapshot(repository_id: int) -> Retry | None:
    return _again(services.take_snapshot(repository_id, job_id=_job_id()))


@retry_when_locked
def deliver(watch_id: int) -> Retry | None:
    return _again(delivery.deliver(watch_id, job_id=_job_id(), lane=_lane()))


@retry_when_locked
def purge_clone(clone_key: str) -> None:
    repositories.purge_clone(clone_key, job_id=_job_id())


@retry_when_locked
def measure(sealed_question: str) -> None:
    measuring.measure(Question.unseal(sealed_question), job_id=_job_id())


@retry_when_locked
def reconcile_all(_: None = None) -> None:
    reconcile.run(job_id=_job_id())


def announce_refusal(watch_id: int) -> None:
    notices.announce_refusal(watch_id)


def announce_recovery(repository_id: int) -> None:
    notices.announce_recovery(repository_id)


def send_notice(subject: tuple[str, int]) -> Retry | None:
    kind, watch_id = subject
    return _again(notices.send(notices.Kind(kind), watch_id, attempt=_attempt(), lane=_lane()))


def resume_app(app_id: int) -> None:
    delivery.resume(App.objects.get(pk=app_id))


def mail_disabled(app_id: int) -> None:
    notices.mail_disabled(App.objects.get(pk=app_id))


def _job_id() -> str:
    job = get_current_job()
    return job.id if job else "none"


def _lane() -> str:
    job = get_current_job()
    return job.origin if job else queue.DELIVERIES


def _attempt() -> int:
    job = get_current_job()
    return 1 + ((job.number_of_retries or 0) if job else 0)


def _again(pause: float | None) -> Retry | None:
    """A job that is to run again keeps its id, so it stays the one pending job of its kind. No pause: it queues up."""
    return None if pause is None else Retry(max=1_000_000, interval=math.ceil(pause))
