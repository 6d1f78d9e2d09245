"""`manage.py backup` and `restore`: the database in one file, the keys apart from it.

A backup can be made while the service works. Everything that a backup does not have is made again: clones are fetched,
the queue is asked for again. What a restore must do to the rows beyond loading them is in `snapshots.new_life`.
"""

from pathlib import Path


class BackupError(Exception):
    """The message is one line that says what is wrong and what to do."""


class ExistsAlready(BackupError):
    def __init__(self, file: Path) -> None:
        super().__init__(f"{file} exists already: choose another name, a backup overwrites nothing")
