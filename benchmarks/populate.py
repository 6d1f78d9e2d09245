"""An empty database filled with made-up apps, repositories, files and a month of deliveries: to measure the admin."""

import hashlib
import secrets
from datetime import timedelta
from typing import Any

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper
from django.utils import timezone

from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import File, Parked, Snapshot

_DAYS = 30
_WORDS = ["atlas", "beacon", "cedar", "delta", "ember", "fjord", "grove", "harbor", "iris", "juniper", "kite", "lumen"]
_KINDS = ["search", "handbook", "policies", "site", "index", "assistant", "wiki", "archive"]
_TROUBLE = {
    0: ("no-access", "The host refuses this token (HTTP 403)."),
    1: ("delivery-failed", "503 Service Unavailable"),
    2: ("host-unavailable", "git ls-remote took longer than 20 s."),
    3: ("delivery-failed", "no answer within 30 s"),
}

# The paths of every repository; the four large tables are joins with it, so each is one statement.
_PATHS = "CREATE TEMPORARY TABLE made_up (path text, digest {bytes}, blob text, size integer, sha256 {bytes})"
_STATEMENTS = [
    """INSERT INTO snapshots_file (repository_id, path_digest, path)
       SELECT r.id, m.digest, m.path FROM repositories_repository r CROSS JOIN made_up m""",
    """INSERT INTO snapshots_fileversion (repository_id, file_id, blob, mode, size, sha256, since)
       SELECT f.repository_id, f.id, m.blob, '100644', m.size, m.sha256, 1
       FROM snapshots_file f JOIN made_up m ON m.digest = f.path_digest""",
    """INSERT INTO snapshots_delivered (watch_id, file_id, sha256, delivered_at, again)
       SELECT w.id, f.id, m.sha256, {now}, NULL
       FROM repositories_watch w JOIN snapshots_file f ON f.repository_id = w.repository_id
       JOIN made_up m ON m.digest = f.path_digest""",
    # More of them lately than long ago, spread over all watches, some refused and some never answered.
    """INSERT INTO snapshots_delivery (watch_id, message_id, event, path, sha256, commit_sha, status, milliseconds,
                                       error_class, error, answer, manual, attempted_at)
       SELECT d.watch_id, 'msg_' || d.id, CASE WHEN d.id % 3 = 0 THEN 'update' ELSE 'create' END, f.path, '', '',
              CASE WHEN d.id % 61 = 0 THEN 503 WHEN d.id % 227 = 0 THEN NULL ELSE 200 END,
              15 + (d.id * 7919) % 97 + CASE WHEN d.id % 19 = 0 THEN 600 ELSE 0 END,
              CASE WHEN d.id % 61 = 0 THEN 'status' WHEN d.id % 227 = 0 THEN 'timeout' ELSE '' END,
              CASE WHEN d.id % 61 = 0 THEN '503 Service Unavailable'
                   WHEN d.id % 227 = 0 THEN 'no answer within 30 s' ELSE '' END,
              '', {false}, {moment}
       FROM (SELECT id, watch_id, file_id, ((id * 7919) % 1000003) / 1000003.0 AS x FROM snapshots_delivered) d
       JOIN snapshots_file f ON f.id = d.file_id ORDER BY d.x DESC""",
]
_UNFINISHED = """DELETE FROM snapshots_delivered WHERE file_id % 3 = 0
    AND watch_id IN (SELECT id FROM repositories_watch WHERE status <> 'synced')"""
_COUNTED = """UPDATE repositories_watch SET files =
    (SELECT COUNT(*) FROM snapshots_delivered d WHERE d.watch_id = repositories_watch.id)"""
_AGE = f"{_DAYS * 86400} * (d.x * d.x + d.x) / 2"
_DIALECTS = {
    "sqlite": {
        "hurry": "PRAGMA cache_size = -400000",
        "bytes": "blob",
        "false": "0",
        "now": "datetime('now')",
        "moment": f"strftime('%Y-%m-%d %H:%M:%S', strftime('%s', 'now') - {_AGE}, 'unixepoch')",
    },
    "postgresql": {
        # What is made up refers to what is made up: checking four million references would take minutes.
        "hurry": "SET LOCAL session_replication_role = replica",
        "bytes": "bytea",
        "false": "false",
        "now": "now()",
        "moment": f"now() - {_AGE} * interval '1 second'",
    },
}


def populate(*, apps: int = 1_000, repositories: int = 10_000, files: int = 1_000_000) -> None:
    """Each repository is watched by one app; `files` are the delivered files of all of them."""
    if App.objects.exists() or Repository.objects.exists():
        raise ValueError("The database is not empty: what is made up would be among what is real.")
    with connection.constraint_checks_disabled(), transaction.atomic(), connection.cursor() as cursor:
        _make_rows(apps, repositories, files_each := files // repositories)
        _make_files(cursor, files_each)
        cursor.execute(_UNFINISHED)
        cursor.execute(_COUNTED)
        _make_parked()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _make_rows(apps: int, repositories: int, files_each: int) -> None:
    made = App.objects.bulk_create(_app(number) for number in range(apps))
    rows = Repository.objects.bulk_create(_repository(number) for number in range(repositories))
    Watch.objects.bulk_create(_watch(made[number % apps], row, number) for number, row in enumerate(rows))
    Snapshot.objects.bulk_create(
        _snapshot(row, sequence, number, files_each) for number, row in enumerate(rows) for sequence in (1, 2, 3)
    )


def _make_files(cursor: CursorWrapper, files_each: int) -> None:
    dialect = _DIALECTS[connection.vendor]
    cursor.execute(dialect["hurry"])
    cursor.execute(_PATHS.format(**dialect))
    cursor.executemany(
        "INSERT INTO made_up VALUES (%s, %s, %s, %s, %s)", [_file(number) for number in range(files_each)]
    )
    for statement in _STATEMENTS:
        cursor.execute(statement.format(**dialect))
    cursor.execute("DROP TABLE made_up")


def _make_parked() -> None:
    watches = Watch.objects.filter(pk__in=list(Watch.objects.values_list("pk", flat=True)[::97][:500]))
    files = {watch.pk: File.objects.filter(repository=watch.repository_id).first() for watch in watches}
    Parked.objects.bulk_create(
        Parked(watch=watch, file=file, sha256=b"\0" * 32, reason="413 Request Entity Too Large")
        for watch in watches
        if (file := files[watch.pk])
    )


def _app(number: int) -> App:
    word, kind = _WORDS[number % len(_WORDS)], _KINDS[number // len(_WORDS) % len(_KINDS)]
    now = timezone.now()
    disabled = number % 200 == 7
    return App(
        name=f"{word.title()} {kind}" + (f" {number // 96 + 1}" if number >= 96 else ""),
        base_url=f"https://{word}-{number}.example.com/hooks",
        email=f"team@{word}-{number}.example.com",
        bearer_hash=secrets.token_hex(32),
        webhook_key=secrets.token_urlsafe(32),
        disabled_at=now - timedelta(hours=5) if disabled else None,
        disabled_reason="The endpoint has accepted nothing for 3 days: 410 Gone" if disabled else "",
        created_at=now - timedelta(days=number % 90, hours=number % 24),
    )


def _repository(number: int) -> Repository:
    owner, name = _WORDS[number // 7 % len(_WORDS)], f"{_KINDS[number % len(_KINDS)]}-{number}"
    now = timezone.now()
    trouble = {
        "consecutive_failures": 5,
        "circuit_open_until": now + timedelta(minutes=5 + number % 25),
        "last_error_code": "host-unavailable",
        "last_error": "git ls-remote took longer than 20 s.",
    }
    return Repository(
        url=f"https://github.com/{owner}/{name}",
        owner=owner,
        name=name,
        clone_key=f"{owner}/{name}",
        is_private=number % 3 == 0,
        sequence=3,
        commit_sha=_sha(number, 3),
        branch="main",
        last_checked_at=now - timedelta(seconds=number % 300),
        next_check_at=now + timedelta(days=1),
        **(trouble if number % 499 == 11 else {}),
    )


def _watch(app: App, repository: Repository, number: int) -> Watch:
    now = timezone.now()
    fields: dict[str, Any] = {"status": WatchStatus.SYNCED}
    if number % 89 == 3:
        code, text = _TROUBLE[number % len(_TROUBLE)]
        fields = {"status": WatchStatus.FAILED, "retry_count": 5, "last_error_code": code, "last_error": text}
    elif number % 41 == 5:
        fields = {"status": WatchStatus.SCANNING if number % 2 else WatchStatus.PENDING}
    return Watch(
        app=app,
        repository=repository,
        synced_sequence=3,
        synced_commit=repository.commit_sha,
        synced_at=now - timedelta(minutes=number % 2000),
        access_proven_at=now - timedelta(seconds=number % 300),
        retry_at=now + timedelta(days=1),
        **fields,
    )


def _snapshot(repository: Repository, sequence: int, number: int, files: int) -> Snapshot:
    ago = timedelta(hours=(3 - sequence) * 40, minutes=number % 1440)
    return Snapshot(
        repository=repository,
        sequence=sequence,
        commit_sha=_sha(number, sequence),
        branch="main",
        files=files,
        bytes=files * 4096,
        created=files if sequence == 1 else 1,
        updated=0 if sequence == 1 else number % 7,
        taken_at=timezone.now() - ago,
    )


def _file(number: int) -> tuple[str, bytes, str, int, bytes]:
    path = f"docs/{_WORDS[number % len(_WORDS)]}/{_KINDS[number % len(_KINDS)]}-{number}.md"
    digest = hashlib.sha256(path.encode()).digest()
    return path, digest, _sha(number, 0), 1024 + number % 8192, hashlib.sha256(digest).digest()


def _sha(number: int, sequence: int) -> str:
    return hashlib.sha1(f"{number}.{sequence}".encode(), usedforsecurity=False).hexdigest()
