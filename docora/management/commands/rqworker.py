"""`manage.py rqworker` with the defaults that Docora's queues need."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError
from django_rq.management.commands.rqworker import Command as RqWorkerCommand

from docora.processes import warm_up
from repositories import canary
from repositories.base import queue


class Command(RqWorkerCommand):
    help = "Work on the queues named, or on all of them; on hooks (the queue urgent) before all others."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--without-scheduler",
            action="store_false",
            dest="with_scheduler",
            help="leave jobs that are due later to other workers, or to `manage.py scheduler`",
        )
        parser.add_argument(
            "--only",
            action="store_true",
            help="these queues alone; else a worker of snapshots or deliveries works on hooks first",
        )
        parser.set_defaults(serializer="rq.serializers.JSONSerializer", worker_ttl=30, with_scheduler=True)

    def handle(self, *queues: str, **options: Any) -> None:
        if unknown := set(queues).difference(queue.ALL):
            known = ", ".join(queue.ALL)
            raise CommandError(f"There is no queue {', '.join(sorted(unknown))}. The queues are {known}.")
        if not options["skip_checks"]:  # `up` has looked before it forked: each look costs a worker 4 MB of its own
            canary.check_keys_at_start()
        warm_up.for_jobs()
        super().handle(*_served(queues, only=options.pop("only")), **options)


def _served(named: tuple[str, ...], *, only: bool) -> tuple[str, ...]:
    """Installations that start a worker for snapshots and one for deliveries serve hooks without being told."""
    served = named or queue.ALL
    if only or {queue.SNAPSHOTS, queue.DELIVERIES}.isdisjoint(served):
        return served
    return (queue.URGENT, *(name for name in served if name != queue.URGENT))
