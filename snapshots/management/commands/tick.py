"""One tick of the scheduler, by hand."""

from typing import Any

from django.core.management.base import BaseCommand

from repositories.management.redis_errors import check_redis
from snapshots.schedule import tick


class Command(BaseCommand):
    help = (
        "Look at the repositories that are due, and ask for the jobs of those that need one, and for deliveries that"
        " got lost. Safe at any time."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        check_redis()
        asked = tick()
        self.stdout.write(f"{asked} {'job' if asked == 1 else 'jobs'} asked for.")
