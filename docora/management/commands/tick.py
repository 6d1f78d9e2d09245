"""`manage.py tick`: one tick of the scheduler, by hand or from cron."""

from typing import Any

from docora.condition import alerts
from repositories.management.command import OperatorCommand
from repositories.management.redis_errors import check_redis
from snapshots.schedule import tick


class Command(OperatorCommand):
    help = (
        "Look at the repositories that are due, and ask for the jobs of those that need one, and for deliveries that"
        " got lost; tell the operator what needs a person. Safe at any time."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        alerts.check_without_raising()
        check_redis()
        asked = tick()
        self.stdout.write(f"{asked} {'job' if asked == 1 else 'jobs'} asked for.")
