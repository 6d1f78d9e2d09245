"""A connection to a database file that is there; sqlite3's own would make an empty one."""

import os
import sqlite3
from typing import Any


class ExistingSqlite(sqlite3.Connection):
    def __init__(self, database: str, *args: Any, **options: Any) -> None:
        if not os.path.exists(database):
            raise sqlite3.OperationalError("no such database file")
        super().__init__(database, *args, **options)
