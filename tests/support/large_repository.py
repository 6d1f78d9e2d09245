"""A watched repository that is large in the database alone: its clone has a handful of files.

What a look, a comparison or a page reads of the other files is therefore read in the database, where it is counted.
"""

from django.db import connection, transaction
from django.db.models import F

from repositories.models import Watch
from snapshots.models import Snapshot

_DIALECTS = {
    "sqlite": {
        "numbers": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) SELECT i FROM n",
        "bytes": "CAST({text} AS BLOB)",
        "moment": "datetime('now', '-' || (n.i * 6) || ' seconds')",
        "false": "0",
    },
    "postgresql": {
        "numbers": "SELECT i FROM generate_series(1, {count}) AS g(i)",
        "bytes": "convert_to({text}, 'UTF8')",
        "moment": "now() - (n.i * 6) * interval '1 second'",
        "false": "false",
    },
}
_FILES = """INSERT INTO snapshots_file (repository_id, path_digest, path)
    SELECT {repository}, {digest}, 'made-up/' || n.i || '.md' FROM made_up n"""
_VERSIONS = """INSERT INTO snapshots_fileversion (repository_id, file_id, blob, mode, size, sha256, since)
    SELECT {repository}, f.id, 'blob-' || n.i, '100644', 1000, {digest}, 1
    FROM made_up n JOIN snapshots_file f ON f.repository_id = {repository} AND f.path_digest = {digest}"""
_DELIVERED = """INSERT INTO snapshots_delivered (watch_id, file_id, sha256, delivered_at, again)
    SELECT {watch}, f.id, {digest}, {moment}, NULL
    FROM made_up n JOIN snapshots_file f ON f.repository_id = {repository} AND f.path_digest = {digest}"""
_DELIVERIES = """INSERT INTO snapshots_delivery (watch_id, message_id, event, path, sha256, commit_sha, status,
                                                 milliseconds, error_class, error, answer, manual, attempted_at)
    SELECT {watch}, 'msg_' || n.i, 'create', 'made-up/' || n.i || '.md', '', '', 200, 20, '', '', '', {false}, {moment}
    FROM made_up n"""


def grow(watches: list[Watch], *, files: int) -> None:
    """Add so many files to the repository of these watches, as if each app had been told all of them."""
    names = {name: text.format(count=files) if name == "numbers" else text for name, text in _dialect().items()}
    digest = names["bytes"].format(text="'made up ' || n.i")
    repository = watches[0].repository_id
    statements = [_FILES, _VERSIONS] + [
        statement.replace("{watch}", str(watch.pk)) for watch in watches for statement in (_DELIVERED, _DELIVERIES)
    ]
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE made_up AS {names['numbers']}")
        for statement in statements:
            cursor.execute(statement.format(repository=repository, digest=digest, **names))
        cursor.execute("DROP TABLE made_up")
    Watch.objects.filter(pk__in=[watch.pk for watch in watches]).update(files=F("files") + files)
    for snapshot in Snapshot.objects.filter(repository=repository):
        snapshot.files += files
        snapshot.save()


def _dialect() -> dict[str, str]:
    return _DIALECTS[connection.vendor]


def set_statistics(*, known: bool) -> None:
    """What the planner knows of the tables: all of it, or nothing, as in a database that was just filled."""
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
        if known:
            return
        if connection.vendor == "sqlite":
            cursor.execute("DELETE FROM sqlite_stat1")
            cursor.execute("ANALYZE sqlite_schema")  # reads what is there now: nothing
        else:
            cursor.execute("DELETE FROM pg_statistic WHERE starelid::regclass::text ~ '^(snapshots|repositories)_'")
