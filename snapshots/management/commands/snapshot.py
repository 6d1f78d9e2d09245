"""`manage.py snapshot`: look at one repository now."""

import uuid
from argparse import ArgumentParser
from typing import IO, Any, cast

from django.core.management.base import CommandError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from repositories import circuit
from repositories.base.words import plural
from repositories.errors import InvalidUrl
from repositories.git.clones import Listener
from repositories.git.urls import RemoteUrl
from repositories.management.command import OperatorCommand
from repositories.management.lock_errors import explaining_lock_errors
from repositories.management.redis_errors import check_redis
from repositories.models import Repository
from repositories.watches import ask_for_snapshot
from snapshots import look
from snapshots.models import Snapshot


class Command(OperatorCommand):
    help = (
        "Look at a watched repository now and tell its apps what has changed. A worker does it, or, with --wait,"
        " this command itself, which then needs the volume with the clones."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("repository", metavar="URL_OR_ID", help="such as https://github.com/owner/name or repo_…")
        parser.add_argument("--ref", default="", help="the watched branch or tag, if it is not the default branch")
        parser.add_argument("--wait", action="store_true", help="take it here, with progress, and say what came of it")

    def handle(self, *, repository: str, ref: str, wait: bool, **options: Any) -> None:
        found = _find(repository, ref)
        if wait:
            with explaining_lock_errors():
                circuit.skip_cooldown(found)
                self._take(found)
        else:
            check_redis()
            ask_for_snapshot(found)
            self.stdout.write(f"Asked for a snapshot of {found}.")

    def _take(self, repository: Repository) -> None:
        before = repository.sequence
        with _progress(Console(file=cast("IO[str]", self.stdout))) as progress:
            listeners = look.Progress(
                received=_listener(progress, "Objects received"), hashed=_listener(progress, "Files hashed")
            )
            look.take_snapshot(repository.pk, job_id=f"terminal-{uuid.uuid4().hex[:8]}", progress=listeners)
        repository.refresh_from_db()
        self._tell(repository, changed=repository.sequence > before)

    def _tell(self, repository: Repository, *, changed: bool) -> None:
        refused = repository.watches.exclude(access_denied_at=None).values_list("last_error", flat=True)
        if refused and not repository.watches.filter(access_denied_at=None).exists():
            raise CommandError(f"No watch has a token that can read it: {refused[0]}")
        if repository.last_error:
            until = repository.circuit_open_until
            paused = f" Left alone until {until:%Y-%m-%d %H:%M:%S} UTC." if until else ""
            raise CommandError(f"{repository.last_error}{paused}")
        newest = Snapshot.objects.filter(repository=repository).order_by("sequence").last()
        files = plural(newest.files, "file") if newest else ""
        if newest is None:
            self.stdout.write(f"{repository} is empty.")
        elif not changed:
            self.stdout.write(f"{repository} is unchanged at {newest.commit_sha[:12]}: {files}.")
        else:
            self.stdout.write(
                f"{repository} is at {newest.commit_sha[:12]}: {files},"
                f" {newest.created} created, {newest.updated} updated, {newest.deleted} deleted"
                + (f", {len(newest.left_out)} left out." if newest.left_out else ".")
            )


def _find(text: str, ref: str) -> Repository:
    rows = Repository.objects.filter(public_id=text)
    if not text.startswith("repo_"):
        try:
            rows = Repository.objects.filter(clone_key=RemoteUrl.parse(text).clone_key, ref=ref)
        except InvalidUrl as error:
            raise CommandError(str(error)) from None
    found = rows.first()
    if found is None:
        raise CommandError(f"Nobody watches {text}{f' at {ref}' if ref else ''}.")
    return found


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _listener(progress: Progress, description: str) -> Listener:
    """A bar that appears with the first word about it."""
    tasks: list[Any] = []

    def hear(done: int, total: int) -> None:
        if not tasks:
            tasks.append(progress.add_task(description, total=total))
        progress.update(tasks[0], completed=done, total=total)

    return hear
