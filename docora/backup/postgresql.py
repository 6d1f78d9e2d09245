"""PostgreSQL: pg_dump and pg_restore, which must be as new as the server.

The connection goes to them in their environment: a password in an argument list would be seen by everybody.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection
from psycopg import pq

from docora.backup import BackupError
from docora.condition import RESTORE_UNFINISHED

_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")


def dump(copy: Path) -> None:
    _run("pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={copy}")
    check(copy)


def check(copy: Path) -> None:
    _run("pg_restore", "--list", str(copy))


def is_empty() -> bool:
    """A restore that was interrupted before anything was loaded may be repeated."""
    return not set(connection.introspection.table_names()) - {RESTORE_UNFINISHED}


def others_connected() -> int:
    """Connections of other programs to this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


@contextmanager
def loaded(copy: Path) -> Iterator[None]:
    """The rows are loaded in one transaction; until the block has ended well, Docora does not start beside them."""
    check(copy)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE IF NOT EXISTS {RESTORE_UNFINISHED} ()")
    options = ("--no-owner", "--no-privileges", "--exit-on-error", "--single-transaction")
    _run("pg_restore", *options, f"--dbname={connection.settings_dict['NAME']}", str(copy))
    yield
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        cursor.execute(f"DROP TABLE {RESTORE_UNFINISHED}")


def _run(program: str, *words: str) -> None:
    command = [str(_find(program)), *words]
    done = subprocess.run(command, env=_environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise BackupError(f"{program} failed: {said[:500] or f'status {done.returncode}'}")


def _find(program: str) -> Path:
    """The first that is as new as the server: an older pg_dump refuses a newer server."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        server = int(cursor.fetchone()[0]) // 10000
    found = {path: _major(path) for path in _candidates(program)}
    if fitting := [path for path, major in found.items() if major >= server]:
        return min(fitting, key=lambda path: found[path])
    others = ", ".join(f"{path} is of version {major}" for path, major in found.items()) or "none is installed"
    raise BackupError(
        f"{program} of PostgreSQL {server} or newer is needed for this server, but {others}: install"
        f" postgresql-client-{server}, or put its folder on the PATH"
    )


def _candidates(program: str) -> list[Path]:
    on_path = shutil.which(program)
    folders = [folder for pattern in _PLACES for folder in sorted(Path("/").glob(pattern.lstrip("/")))]
    beside = [folder / program for folder in folders if (folder / program).is_file()]
    return [*([Path(on_path)] if on_path else []), *beside]


def _major(program: Path) -> int:
    """0 for a program that does not run, such as Debian's wrapper without what it wraps."""
    try:
        shown = subprocess.run([str(program), "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    number = re.search(r"\(PostgreSQL\) (\d+)", shown.stdout)
    return int(number[1]) if number else 0


def _environment() -> dict[str, str]:
    """Each parameter of Django's connection as the variable by which libpq knows it."""
    variables = {
        option.keyword.decode(): option.envvar.decode() for option in pq.Conninfo.get_defaults() if option.envvar
    }
    parameters = connection.get_connection_params()
    ours = {variables[name]: str(value) for name, value in parameters.items() if name in variables and value}
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C", "PGCONNECT_TIMEOUT": "10", **ours}
