"""A worker in the test's own process, so that a failing job fails the test with its own traceback."""

from collections.abc import Callable
from datetime import timedelta
from time import sleep

from django.db.models import Max
from django.utils import timezone
from rq import SimpleWorker
from rq.job import Job
from rq.serializers import JSONSerializer

from repositories import timing, watches
from repositories.base import queue
from repositories.base.listed_job import ListedJob
from repositories.models import Repository, Watch
from snapshots.models import Completion

# The types of the fixtures `work` and `look`.
Work = Callable[..., None]
Look = Callable[[], Repository]


class _Worker(SimpleWorker):
    job_class = ListedJob

    def _install_signal_handlers(self) -> None:
        """The signals of this process are the test runner's."""

    def subscribe(self) -> None:
        """Nobody sends commands to a worker that ends with its jobs; to listen takes as long as a small job."""

    def unsubscribe(self) -> None:
        """See above."""

    def run_maintenance_tasks(self) -> None:
        """There are no other workers whose jobs could have been left."""

    def handle_exception(self, job: Job, *exc_info: object) -> None:
        self.errors = [*getattr(self, "errors", []), exc_info[1]]
        super().handle_exception(job, *exc_info)


def run_jobs(*, also_later_ones: bool = False) -> None:
    """Run what is queued, and what that queues; also what is put off to a later time, as if it had come."""
    connection = queue.connection()
    queues = [queue.named(name) for name in queue.ALL]
    if also_later_ones:
        _wait_for_short_pauses()
    for each in queues if also_later_ones else []:
        for job_id in each.scheduled_job_registry.get_job_ids():
            each.scheduled_job_registry.remove(job_id)
            each.enqueue_job(ListedJob.fetch(job_id, connection=connection, serializer=JSONSerializer))
    worker = _Worker(queues, connection=connection, serializer=JSONSerializer)
    worker.work(burst=True, logging_level="ERROR")
    for error in getattr(worker, "errors", []):
        raise error


def _wait_for_short_pauses() -> None:
    """A job that runs before the time that its row names does nothing. Longer pauses are what some tests are about."""
    soon = timezone.now() + timedelta(seconds=1)
    for rows in (Watch.objects, Completion.objects):
        last = rows.filter(retry_at__lt=soon).aggregate(last=Max("retry_at"))["last"]
        sleep(timing.seconds_until(last))


def snapshot(repository: Repository, work: Work) -> None:
    """Look at the repository, and deliver what has changed."""
    watches.request_snapshot(repository)
    work()


def put_worker(name: str) -> None:
    """As a worker of this queue registers itself, and is heard of."""
    queue.connection().sadd(f"rq:workers:{name}", "rq:worker:somebody")
    queue.connection().hset("rq:worker:somebody", "state", "idle")
