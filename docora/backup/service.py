"""Backup and restore, step by step."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import redis
from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

import docora
from docora import condition, env
from docora.backup import BackupError, ExistsAlready, archive, keys, postgresql, sqlite
from docora.processes import preflight
from repositories.base import connections, pulse, queue
from snapshots import new_life

_OUR_APPS = {"docora", "repositories", "snapshots"}


def back_up(file: Path, *, keys_file: Path | None = None) -> archive.Facts:
    """One consistent copy of the database, also while the service works."""
    if file.exists():
        raise ExistsAlready(file)
    if not file.parent.is_dir():
        raise BackupError(f"{file.parent} is not a folder")
    facts = archive.Facts(
        engine=connection.vendor,
        version=docora.__version__,
        made_at=timezone.now().isoformat(timespec="seconds"),
        migrations=_applied(),
        keys=keys.fingerprints(),
    )
    if keys_file:
        keys.write(keys_file)
    with tempfile.TemporaryDirectory(dir=file.parent, prefix=".docora-backup-") as folder:
        copy = Path(folder) / "database"
        _database().dump(copy)
        archive.write(file, facts, copy)
    return facts


def restore(file: Path, *, keys_file: Path | None = None, say: Callable[[str], None]) -> None:
    """Into an empty database, while nothing of the service runs."""
    preflight.check_writable(settings.DATA_DIR, "DOCORA_DATA_DIR")
    with preflight.keep_stopped(settings.DATA_DIR):
        _check_target()
        with archive.unpacked(file, _beside_database()) as (facts, copy):
            say(f"{file}: Docora {facts.version}, {facts.engine}, of {facts.made_at}")
            _check_fit(facts)
            if keys_file:
                keys.take_over(keys_file)
            for missing in keys.check(facts.keys):
                say(f"An older encryption key of this backup is not here, which may be right: {missing}")
            with _database().loaded(copy):
                call_command("migrate", interactive=False, verbosity=0, skip_checks=True)
                condition.check_keys()
                new_life.begin()
        _forget_queue()


def _beside_database() -> Path:
    """Of SQLite: on its file system, where the copy can take its place."""
    if connection.vendor != "sqlite":
        return settings.DATA_DIR
    folder = sqlite.database_file().absolute().parent
    preflight.check_writable(folder, "DATABASE_URL")
    return folder


def _database() -> ModuleType:
    return sqlite if connection.vendor == "sqlite" else postgresql


def _applied() -> list[str]:
    try:
        applied = MigrationRecorder(connection).applied_migrations()
    except DatabaseError as error:
        raise BackupError(f"the database does not answer: {preflight.one_line(error)}") from None
    if not applied:
        raise BackupError(f"there is nothing to back up: {_name()} has no tables. Is it the right one?")
    return sorted(f"{app}.{name}" for app, name in applied)


def _name() -> str:
    return str(connection.settings_dict["NAME"])


def _check_target() -> None:
    preflight.check_database()
    if not _database().is_empty():
        raise BackupError(f"the database {_name()} is not empty: restore into a new one, nothing is overwritten")
    if connection.vendor == "postgresql" and (others := postgresql.others_connected()):
        raise BackupError(f"{others} other connections to the database {_name()} are open: stop what uses it")
    if env.REDIS_URL:
        preflight.check_redis(settings.REDIS_URL)
        if working := pulse.count_workers(connection=connections.connect()):
            raise BackupError(
                f"{working} workers are known in Redis: stop Docora on every host (one that was killed is forgotten"
                " after some minutes)"
            )


def _check_fit(facts: archive.Facts) -> None:
    if facts.engine != connection.vendor:
        raise BackupError(
            f"it is a backup of {facts.engine}, and DATABASE_URL names {connection.vendor}: restore it into"
            f" {facts.engine}"
        )
    known = {f"{app}.{name}" for app, name in MigrationLoader(None).disk_migrations}
    if newer := [name for name in facts.migrations if name not in known and name.split(".")[0] in _OUR_APPS]:
        raise BackupError(
            f"it is a backup of Docora {facts.version}, whose database is newer than this version ({newer[-1]}):"
            " install that version"
        )


def _forget_queue() -> None:
    """What is queued was asked for by rows that are not these; the scheduler asks for what is due."""
    if not env.REDIS_URL:
        shutil.rmtree(settings.REDIS_SOCKET.parent, ignore_errors=True)
        return
    for name in queue.ALL:
        jobs = queue.named(name)
        jobs.empty()  # type: ignore[no-untyped-call]
        for registry in (jobs.scheduled_job_registry, jobs.failed_job_registry):
            for job_id in registry.get_job_ids():
                registry.remove(job_id, delete_job=True)


@contextmanager
def errors_in_a_line() -> Iterator[None]:
    """What can be wrong with a backup, as a BackupError."""
    try:
        yield
    except (preflight.StartError, condition.Unmet) as error:
        raise BackupError(str(error)) from None
    except redis.RedisError as error:
        raise BackupError(f"Redis does not answer: {preflight.one_line(error)}") from None
    except OSError as error:
        raise BackupError(f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")) from None
