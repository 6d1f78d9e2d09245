"""A busy lock, told to the person at the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from django.core.management.base import CommandError

from repositories.errors import Holder, LockLostError, LockTimeoutError


@contextmanager
def explaining_lock_errors() -> Iterator[None]:
    """Inside a command: a lock that cannot be had becomes a sentence instead of a traceback."""
    try:
        yield
    except LockTimeoutError as error:
        raise CommandError(
            f"{error.repo_path} is in use: {_whom(error.holder)}.\n"
            "Try again when that is done. `manage.py repolocks` lists every lock; if the job is dead,"
            f" `manage.py repolocks --release {error.repo_path}` frees this one."
        ) from error
    except LockLostError as error:
        raise CommandError(
            f"The lock on {error.repo_path} was lost, so the work was stopped. Nothing is damaged: try again."
        ) from error


def _whom(holder: Holder | None) -> str:
    if holder is None:
        return "nobody could say by whom"
    since = datetime.fromtimestamp(holder.since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"job {holder.job_id} on {holder.host} (process {holder.pid}) holds it since {since}"
