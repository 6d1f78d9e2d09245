"""The RQ worker of every queue."""

from rq import Worker as RqWorker


class Worker(RqWorker):
    pass
