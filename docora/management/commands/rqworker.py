"""`manage.py rqworker` with the defaults that Docora's queues need."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError
from django_rq.management.commands.rqworker import Command as RqWorkerCommand

from docora.processes import warm_up
from repositories import canary


class Command(RqWorkerCommand):
    help = "Work on the queues named, or on all of them."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--without-scheduler",
            action="store_false",
            dest="with_scheduler",
            help="leave jobs that are due later to other workers",
        )
        parser.set_defaults(serializer="rq.serializers.JSONSerializer", worker_ttl=30, with_scheduler=True)

    def handle(self, *queues: str, **options: Any) -> None:
        if unknown := set(queues).difference(settings.RQ_QUEUES):
            known = ", ".join(settings.RQ_QUEUES)
            raise CommandError(f"There is no queue {', '.join(sorted(unknown))}. The queues are {known}.")
        canary.check_keys_at_start()
        warm_up.for_jobs()
        super().handle(*(queues or settings.RQ_QUEUES), **options)
