"""`manage.py redeliver`: tell an app again what it was told before."""

import time
from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from repositories.management.redis_errors import check_redis
from repositories.models import Watch
from snapshots.delivery import redelivery


def _moment(text: str) -> datetime:
    moment = parse_datetime(text)
    if moment is None:
        raise ArgumentTypeError(f"{text!r} is not a time such as 2025-01-31T09:30Z")
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


class Command(BaseCommand):
    help = "Tell an app again what it was told of a repository before. The delivery itself is a job for the workers."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("app_id", help="such as app_5f2b1c0a9d8e7f6a5b4c3d2e")
        parser.add_argument("repository_id", help="such as repo_5f2b1c0a9d8e7f6a5b4c3d2e")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--everything", action="store_true", help="every file, with new message ids")
        what.add_argument("--since", type=_moment, metavar="TIME", help="what was attempted since 2025-01-31T09:30Z")
        what.add_argument("--parked", action="store_true", help="the files that the endpoint refused")
        what.add_argument("--now", action="store_true", help="only end the pause after a failure")
        parser.add_argument("--wait", action="store_true", help="show the progress until the app has everything")

    def handle(self, *args: Any, **options: Any) -> None:
        check_redis()
        watch = _watch(options["app_id"], options["repository_id"])
        if options["everything"]:
            redelivery.resync(watch)
        elif options["since"]:
            redelivery.redeliver_since(watch, options["since"])
        elif options["parked"]:
            redelivery.retry_parked(watch)
        else:
            redelivery.retry_now(watch)
        self._show(watch)
        while options["wait"] and redelivery.progress(watch).remaining:
            time.sleep(1)
            self._show(watch)

    def _show(self, watch: Watch) -> None:
        progress = redelivery.progress(watch)
        self.stdout.write(f"{progress.remaining} messages to go; {watch.repository} has {progress.total} files")


def _watch(app_id: str, repository_id: str) -> Watch:
    watches = Watch.objects.select_related("app", "repository")
    watch = watches.filter(app__public_id=app_id, repository__public_id=repository_id).first()
    if watch is None:
        raise CommandError(f"{app_id} does not watch {repository_id}.")
    if watch.app.disabled_at:
        raise CommandError(f"{watch.app} is disabled: nothing is sent to it until it is enabled.")
    return watch
