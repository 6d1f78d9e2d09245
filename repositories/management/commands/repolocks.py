"""Lists which job holds which repository, for the operator."""

import json
import socket
from argparse import ArgumentParser
from typing import Any

import psutil
from django.core.management.base import CommandError
from rq.job import JobStatus

from repositories.base import queue
from repositories.errors import Holder
from repositories.management.command import OperatorCommand
from repositories.management.redis_errors import check_redis
from repositories.management.table import table
from repositories.repo_lock import LockStatus, force_release, lock_status

_COLUMNS = ("key", "job", "host", "pid", "age", "waiters")


class Command(OperatorCommand):
    help = "List the held repository locks, or release one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the list as JSON")
        parser.add_argument("--stale", action="store_true", help="only locks whose job is no longer running")
        parser.add_argument("--release", metavar="KEY", help="free this lock, such as owner/name")
        parser.add_argument("--yes", action="store_true", help="release without asking")

    def handle(self, *, release: str | None, yes: bool, stale: bool, **options: Any) -> None:
        check_redis()
        locks = [lock for lock in lock_status() if not stale or is_stale(lock.holder)]
        if release:
            self._release(locks, release, ask=not yes)
        elif options["json"]:
            self.stdout.write(json.dumps([_as_json(lock) for lock in locks], indent=2))
        elif locks:
            self.stdout.write(table(_COLUMNS, map(_row, locks)))
        else:
            self.stdout.write("No stale locks." if stale else "No locks are held.")

    def _release(self, locks: list[LockStatus], key: str, *, ask: bool) -> None:
        lock = next((lock for lock in locks if lock.key == key), None)
        if lock is None:
            raise CommandError(f"Nobody holds a lock on {key}. `manage.py repolocks` lists those that are held.")
        if ask and not self._is_wanted(lock):
            raise CommandError("Nothing was released.")
        if not force_release(lock):
            raise CommandError(f"The lock on {key} changed hands in the meantime. Nothing was released.")
        self.stdout.write(f"Released the lock on {key}.")

    def _is_wanted(self, lock: LockStatus) -> bool:
        holder = lock.holder
        self.stdout.write(
            f"Job {holder.job_id} on {holder.host} (process {holder.pid}) holds {lock.key} for {_span(lock.age)}."
            " If it still runs, its git is stopped and its work is lost."
        )
        return input("Release it? [y/N] ").strip().lower() in {"y", "yes"}


def is_stale(holder: Holder) -> bool:
    """On this host the process tells; of another host's only the queue knows."""
    if holder.host == socket.gethostname():
        return not psutil.pid_exists(holder.pid)
    job = queue.fetch(holder.job_id)
    return job is None or job.get_status() != JobStatus.STARTED


def _row(lock: LockStatus) -> tuple[str, ...]:
    holder = lock.holder
    return (lock.key, holder.job_id, holder.host, str(holder.pid), _span(lock.age), str(len(lock.waiters)))


def _as_json(lock: LockStatus) -> dict[str, object]:
    return {
        "key": lock.key,
        "job": lock.holder.job_id,
        "host": lock.holder.host,
        "pid": lock.holder.pid,
        "since": lock.holder.since,
        "age": round(lock.age, 3),
        "expires_in": round(lock.expires_in, 3),
        "fence": lock.fence,
        "waiters": list(lock.waiters),
    }


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"
