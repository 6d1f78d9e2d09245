"""`manage.py redeliver`: tell an app again what it was told before."""

from argparse import ArgumentParser, ArgumentTypeError
from datetime import datetime
from time import monotonic, sleep
from typing import IO, Any, cast

from django.conf import settings
from django.core.management.base import CommandError
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from repositories import watch_state
from repositories.base import pulse
from repositories.base.words import plural
from repositories.management.command import OperatorCommand
from repositories.management.redis_errors import check_redis
from repositories.management.table import printable
from repositories.models import Watch
from snapshots.delivery import endpoint, redelivery
from snapshots.models import Parked

_LOOK_EVERY = 1.0
# Seconds without an accepted message, after which it is checked whether there is a worker at all.
_STANDSTILL = 15.0


def _moment(text: str) -> datetime:
    moment = parse_datetime(text)
    if moment is None:
        raise ArgumentTypeError(f"{text!r} is not a time such as 2025-01-31T09:30Z")
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


class Command(OperatorCommand):
    help = (
        "Tell an app again what it was told of a repository before. The delivery itself is a job for the workers."
        " With --wait, the exit status is 0 if the app has accepted everything, and 1 as soon as that cannot be"
        " hoped for: the app is disabled, its token is refused, the attempts are used up, no worker takes the job, or"
        " files were refused."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("app_id", help="such as app_5f2b1c0a9d8e7f6a5b4c3d2e")
        parser.add_argument("repository_id", help="such as repo_5f2b1c0a9d8e7f6a5b4c3d2e")
        what = parser.add_mutually_exclusive_group(required=True)
        what.add_argument("--everything", action="store_true", help="every file, with new message ids")
        what.add_argument("--since", type=_moment, metavar="TIME", help="what was attempted since 2025-01-31T09:30Z")
        what.add_argument("--parked", action="store_true", help="the files that the endpoint refused")
        what.add_argument("--now", action="store_true", help="only end the pause after a failure")
        parser.add_argument("--wait", action="store_true", help="show the progress, and say what came of it")

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
        progress = redelivery.progress(watch)
        self.stdout.write(f"{_to_go(progress.remaining)}; {watch.repository} has {plural(progress.total, 'file')}")
        if options["wait"]:
            self._wait(watch, progress.remaining)

    def _wait(self, watch: Watch, total: int) -> None:
        """Show the progress until the app has accepted everything, or until a person has to act."""
        console = Console(file=cast("IO[str]", self.stdout), highlight=False)
        columns = (TextColumn("Accepted"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        waiting = _Waiting(watch)
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("", total=total)
            while waiting.goes_on():
                # A new commit may have come since: then there is more to tell than at the beginning.
                total = max(total, waiting.remaining)
                bar.update(task, total=total, completed=total - waiting.remaining)
                if not console.is_terminal and waiting.has_moved():
                    self.stdout.write(_to_go(waiting.remaining))
                if failure := waiting.new_failure():
                    console.print(f"{printable(failure)}; it is tried again", markup=False)
                sleep(_LOOK_EVERY)
            bar.update(task, total=total, completed=total)
        self._tell_end(watch)

    def _tell_end(self, watch: Watch) -> None:
        try:
            watch.refresh_from_db()
        except Watch.DoesNotExist:
            raise CommandError("It is not watched any more.") from None
        has = f"{watch.app.name} has {watch.repository} at {watch.synced_commit[:12]}"
        if refused := Parked.objects.filter(watch=watch).count():
            files = plural(refused, "file")
            raise CommandError(f"{has} but for {files} that its endpoint refused; `--parked` tries again.")
        self.stdout.write(f"{has}, with every file.")


def _to_go(messages: int) -> str:
    return f"{plural(messages, 'message')} to go"


class _Waiting:
    """Looks at a watch again and again; CommandError as soon as waiting is of no use."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._failures, self._told = watch.retry_count, watch.last_error
        self._moved_at = monotonic()
        self._shown: int | None = None
        self.remaining = 0

    def goes_on(self) -> bool:
        if not watch_state.behind(Watch.objects.filter(pk=self._watch.pk)).exists():
            return False
        try:
            remaining = redelivery.progress(self._watch).remaining
        except Watch.DoesNotExist:
            return False
        if remaining != self.remaining:
            self.remaining, self._moved_at = remaining, monotonic()
        self._check_endpoint()
        if monotonic() - self._moved_at > _STANDSTILL:
            self._check_workers()
        return True

    def has_moved(self) -> bool:
        """Whether there is less or more to do than when this was asked last."""
        moved, self._shown = self._shown not in (None, self.remaining), self.remaining
        return moved

    def new_failure(self) -> str:
        """The reason of a failed attempt, once."""
        failure = self._watch.last_error
        if failure == self._told:
            return ""
        self._told = failure
        return failure

    def _check_endpoint(self) -> None:
        watch, app = self._watch, self._watch.app
        app.refresh_from_db(fields=["disabled_at", "disabled_reason", "slow_since"])
        if app.disabled_at:
            raise CommandError(f"{app.name} was disabled: {app.disabled_reason}")
        if watch.access_denied_at:
            raise CommandError(f"Nothing can be delivered: {watch.last_error}")
        if watch.retry_count > self._failures and watch.retry_count >= settings.MAX_RETRY_ATTEMPTS:
            later = f" The next attempt is at {watch.retry_at:%H:%M:%S} UTC." if watch.retry_at else ""
            raise CommandError(f"{watch.retry_count} attempts failed: {watch.last_error}.{later}")

    def _check_workers(self) -> None:
        if (lane := endpoint.lane_of(self._watch.app)) in pulse.untended_queues():
            raise CommandError(f"No worker takes {lane}: start `manage.py up`, or `manage.py rqworker {lane}`.")


def _watch(app_id: str, repository_id: str) -> Watch:
    watches = Watch.objects.select_related("app", "repository")
    watch = watches.filter(app__public_id=app_id, repository__public_id=repository_id).first()
    if watch is None:
        raise CommandError(f"{app_id} does not watch {repository_id}. `manage.py watches` lists what is watched.")
    if watch.app.disabled_at:
        raise CommandError(
            f"{watch.app} is disabled: nothing is sent to it until it is enabled (`manage.py enable_app {app_id}`)."
        )
    return watch
