"""SQLite: its online backup, which is consistent while other processes write."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from django.db import connection

from docora.backup import BackupError


def database_file() -> Path:
    return Path(str(connection.settings_dict["NAME"]))


def dump(copy: Path) -> None:
    """All pages in one step: it holds one view of the database, and in WAL mode writers do not wait for it."""
    source = f"{database_file().absolute().as_uri()}?mode=ro"
    try:
        with closing(sqlite3.connect(source, uri=True)) as live, closing(sqlite3.connect(copy)) as target:
            live.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it
    except sqlite3.Error as error:
        raise BackupError(f"the database cannot be copied: {error}") from None
    check(copy)


def check(copy: Path) -> None:
    try:
        with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            found = [row[0] for row in opened.execute("PRAGMA integrity_check(3)")]
    except sqlite3.Error as error:
        found = [str(error)]
    if found != ["ok"]:
        raise BackupError(f"the copy of the database is damaged: {'; '.join(found)}")


def is_empty() -> bool:
    path = database_file()
    if not path.exists():
        return True
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
        return opened.execute("SELECT 1 FROM sqlite_master").fetchone() is None


@contextmanager
def loaded(copy: Path) -> Iterator[None]:
    """The block works on the copy; only when it has ended well does the copy become the database."""
    check(copy)
    connection.close()
    name, connection.settings_dict["NAME"] = connection.settings_dict["NAME"], str(copy)
    try:
        yield
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        connection.close()
        connection.settings_dict["NAME"] = name
    target = database_file()
    for left in (target, *(target.with_name(target.name + end) for end in ("-wal", "-shm"))):
        left.unlink(missing_ok=True)  # of an empty database
    copy.rename(target)
