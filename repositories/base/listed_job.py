"""RQ's job, for the functions of a list alone.

RQ imports and calls whatever dotted name it finds in Redis, so without the list anybody who can write there runs code
here. JSON keeps out pickles, not names.
"""

import logging
from collections.abc import Callable
from typing import Any

from django.conf import settings
from rq.job import Job
from rq.serializers import DefaultSerializer, JSONSerializer

log = logging.getLogger("docora.queue")


class JobRefused(Exception):
    """A message names what no message may start."""


def _refuse(job: Job, name: object) -> None:
    if name:
        log.error("Job %.200s names %.200r, which no message may start: not called", job.id, name)


class ListedJob(Job):
    @property
    def func(self) -> Callable[..., Any]:
        """Only what settings.JOB_FUNCTIONS names is imported; a method of an object that came along never is."""
        if self.func_name not in settings.JOB_FUNCTIONS or self.instance is not None:
            _refuse(self, self.func_name)
            raise JobRefused(f"{self.func_name!r:.200} is not one of Docora's jobs.")
        function: Callable[..., Any] = super().func
        return function

    # Docora asks for no callbacks: a job that has one was not queued by it.
    success_callback = property(lambda self: _refuse(self, self._success_callback_name))
    failure_callback = property(lambda self: _refuse(self, self._failure_callback_name))
    stopped_callback = property(lambda self: _refuse(self, self._stopped_callback_name))


# RQ's scheduler and django-rq's pages take RQ's own job, and those pages its own serializer: looking at a list of jobs
# would be enough to unpickle what a job says of itself, and to call its callback if it is overdue. No setting helps.
setattr(Job, "failure_callback", ListedJob.failure_callback)  # noqa: B010  mypy refuses the plain assignment
DefaultSerializer.dumps, DefaultSerializer.loads = JSONSerializer.dumps, JSONSerializer.loads
