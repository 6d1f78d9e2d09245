"""What the tests of notices share."""

from docora.demo.receiver import Receiver
from repositories.models import Repository
from snapshots import look as snapshots
from tests.support.worker import Work


def look(repository: Repository, work: Work, *, times: int = 1) -> None:
    for _ in range(times):
        snapshots.take_snapshot(repository.pk, job_id="look")
    work()


def events(receiver: Receiver) -> list[str]:
    return [request.event for request in receiver.requests]
