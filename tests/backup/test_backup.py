"""The file of a backup, what may go wrong with it, and what a restore does to the rows."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

from docora import condition
from docora.backup import BackupError, archive, keys, postgresql, sqlite
from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts, watches
from repositories.base import crypto
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots import new_life
from snapshots.delivery import tell
from snapshots.models import Delivered, FileVersion, Parked, Snapshot
from tests.support import postgres, warm_python
from tests.support.worker import Work

ROOT = Path(__file__).parent.parent.parent
FACTS = archive.Facts(engine="sqlite", version="1", made_at="now", migrations=[], keys=["k"])


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", postgres.path_with_programs())


def make_archive(folder: Path) -> Path:
    copy, file = folder / "copy", folder / "backup.tar.gz"
    copy.write_bytes(b"rows" * 1000)
    archive.write(file, FACTS, copy)
    return file


class TestTheFile:
    def test_is_read_back_and_for_its_owner_alone(self, tmp_path: Path) -> None:
        file = make_archive(tmp_path)
        assert file.stat().st_mode & 0o777 == 0o600
        with archive.unpacked(file) as (facts, copy):
            assert copy.read_bytes() == b"rows" * 1000
        assert (facts.engine, facts.keys) == ("sqlite", ["k"])
        assert {path.name for path in tmp_path.iterdir()} == {"copy", "backup.tar.gz"}, "no draft is left"

    def test_overwrites_nothing(self, tmp_path: Path) -> None:
        make_archive(tmp_path)
        with pytest.raises(BackupError, match="exists already"):
            make_archive(tmp_path)

    def test_that_is_damaged_or_cut_off_or_another_file_is_refused(self, tmp_path: Path) -> None:
        whole = make_archive(tmp_path).read_bytes()
        for number, damaged in enumerate((b"", b"hello", whole[:-40], whole[:60] + b"\0\0\0\0" + whole[64:])):
            file = tmp_path / f"damaged-{number}"
            file.write_bytes(damaged)
            with pytest.raises(BackupError, match=r"backup|damaged"), archive.unpacked(file):
                pass

    def test_that_does_not_exist_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(BackupError, match="does not exist"), archive.unpacked(tmp_path / "none"):
            pass


class TestKeys:
    def test_are_written_apart_and_taken_over(self, tmp_path: Path, settings: Settings) -> None:
        settings.DATA_DIR = tmp_path
        settings.SECRET_KEY = "it's #1 $HOME & (more)"
        (tmp_path / "keys").mkdir()
        keys.write(tmp_path / "keys.env")
        assert (tmp_path / "keys.env").stat().st_mode & 0o777 == 0o600
        keys.take_over(tmp_path / "keys.env")
        assert (tmp_path / "keys" / "django_secret_key").read_text() == settings.SECRET_KEY
        assert (tmp_path / "keys" / "encryption_key").read_text() == settings.ENCRYPTION_KEYS[0]
        assert (tmp_path / "keys" / "encryption_key").stat().st_mode & 0o777 == 0o600
        with pytest.raises(BackupError, match="exists already"):
            keys.write(tmp_path / "keys.env")

    def test_all_of_several_are_taken_over(self, tmp_path: Path, settings: Settings) -> None:
        (tmp_path / "keys").mkdir()
        settings.DATA_DIR = tmp_path
        old = settings.ENCRYPTION_KEYS[0]
        sealed = crypto.encrypt("a secret")
        settings.ENCRYPTION_KEYS = several = [Fernet.generate_key().decode(), old]
        keys.write(tmp_path / "keys.env")
        settings.ENCRYPTION_KEYS = [Fernet.generate_key().decode()]
        keys.take_over(tmp_path / "keys.env")
        assert several == settings.ENCRYPTION_KEYS
        assert crypto.decrypt(sealed) == "a secret"
        show = [sys.executable, "-c", "from docora.settings import ENCRYPTION_KEYS; print(*ENCRYPTION_KEYS)"]
        environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(tmp_path)}
        assert subprocess.check_output(show, cwd=ROOT, env=environment, text=True).split() == several

    def test_another_file_is_not_taken_for_keys(self, tmp_path: Path) -> None:
        file = tmp_path / "other.env"
        file.write_text("ENCRYPTION_KEYS=hunter2\nDJANGO_SECRET_KEY=x\n")
        with pytest.raises(BackupError, match="is not a file of keys") as caught:
            keys.take_over(file)
        assert "hunter2" not in str(caught.value)

    def test_the_newest_must_be_there_and_an_older_one_is_named(self) -> None:
        assert keys.check([*keys.fingerprints(), "older"]) == ["older"]
        with pytest.raises(BackupError, match="--keys FILE"):
            keys.check(["newer", *keys.fingerprints()])


@pytest.mark.django_db(transaction=True)
class TestTheDatabase:
    def test_the_copy_is_checked(self, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        (sqlite if connection.vendor == "sqlite" else postgresql).dump(copy)
        copy.write_bytes(copy.read_bytes()[:4096] + b"\xff" * 8192)
        with pytest.raises(BackupError):
            (sqlite if connection.vendor == "sqlite" else postgresql).check(copy)

    def test_the_backup_has_no_key_in_it(self, alice_app: App, tmp_path: Path, settings: Settings) -> None:
        file = tmp_path / "backup.tar.gz"
        call_command("backup", str(file))
        with archive.unpacked(file) as (facts, copy):
            text = copy.read_bytes() + repr(facts).encode()
        for secret in (settings.SECRET_KEY, *settings.ENCRYPTION_KEYS, alice_app.webhook_key):
            assert secret.encode() not in text

    def test_a_missing_or_older_pg_dump_is_named_with_the_remedy(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("PostgreSQL alone")
        monkeypatch.setattr(postgresql, "_PLACES", ())
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(CommandError, match=r"none is installed: install postgresql-client-\d+"):
            call_command("backup", str(tmp_path / "b"))
        old = tmp_path / "pg_dump"
        old.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6.1'\n")
        old.chmod(0o755)
        with pytest.raises(CommandError, match=r"pg_dump is of version 9: install postgresql-client-\d+"):
            call_command("backup", str(tmp_path / "b"))

    def test_a_restore_that_was_interrupted_is_not_started_with(self) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("on SQLite, the file gets its name at the very end")
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {condition.RESTORE_UNFINISHED} ()")
        try:
            with pytest.raises(condition.Unmet, match="interrupted"):
                condition.check_restored()
            with pytest.raises(SystemCheckError, match="interrupted"):
                call_command("apps", skip_checks=False)
        finally:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE {condition.RESTORE_UNFINISHED}")


def test_an_interrupted_restore_leaves_no_database(tmp_path: Path, settings: Settings) -> None:
    """Only SQLite: the copy becomes the database when all has been done to it."""
    if connection.vendor != "sqlite":
        pytest.skip("SQLite alone")
    copy = tmp_path / "copy"
    with closing(sqlite3.connect(copy)) as made:
        made.execute("CREATE TABLE something (id)")
    name, target = connection.settings_dict["NAME"], tmp_path / "target.sqlite3"
    connection.settings_dict["NAME"] = str(target)
    try:
        with pytest.raises(KeyboardInterrupt), sqlite.loaded(copy):
            raise KeyboardInterrupt
        assert not target.exists()
        assert sqlite.is_empty()
    finally:
        connection.settings_dict["NAME"] = name


def test_a_database_without_tables_is_not_backed_up(data_dir: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir)}
    result = warm_python.run("backup", str(data_dir / "b"), environment=environment)
    assert result.returncode == 1
    assert "no such database file" in result.stderr
    assert list(data_dir.iterdir()) == []
    assert not (data_dir / "b").exists()


@pytest.fixture
def another(bob_app: App, remote: HostedRepository, work: Work) -> Watch:
    """Bob's watch, of an app that is disabled."""
    made = watches.watch(bob_app, remote.url)
    work()
    accounts.disable_app(bob_app, "The endpoint answered 410 Gone.")
    return made


class TestTheNewLife:
    def test_tells_everything_again_after_a_fresh_look(
        self, watch: Watch, remote: HostedRepository, alice: Receiver, work: Work
    ) -> None:
        told = len(alice.requests)
        remote.commit({"README.md": "# Newer\n"})
        new_life.begin()
        watch.refresh_from_db()
        assert watch.status == WatchStatus.PENDING
        assert watch.resyncs > 1_000_000
        assert not tell.due(Watch.objects.all()).exists(), "the commit of the backup is not told"
        call_command("tick")
        work()
        again = alice.requests[told:]
        assert {request.path for request in again} == {"README.md", "docs/start.md", "logo.png"}
        assert {request.commit_sha for request in again} == {remote.tip()}
        assert alice.files_of(watch.repository.public_id) == remote.files()
        watch.refresh_from_db()
        assert watch.status == WatchStatus.SYNCED

    def test_renumbers_the_newest_snapshot_with_its_files(
        self, watch: Watch, remote: HostedRepository, work: Work
    ) -> None:
        remote.commit({"README.md": "# Second\n"})
        watches.request_snapshot(watch.repository)
        work()
        new_life.begin()
        repository = Repository.objects.get()
        assert repository.sequence > 1_000_000
        assert repository.fence == 0
        assert list(Snapshot.objects.order_by("sequence").values_list("sequence", flat=True)) == [
            1,
            repository.sequence,
        ]
        ended = FileVersion.objects.get(until__isnull=False)
        assert (ended.since, ended.until) == (1, repository.sequence)
        assert FileVersion.objects.filter(since=repository.sequence).count() == 1

    def test_twice_is_twice_new(self, watch: Watch) -> None:
        numbers = []
        for _ in range(2):
            new_life.begin()
            watch.refresh_from_db()
            numbers.append((watch.resyncs, Repository.objects.get().sequence))
        assert numbers[0] < numbers[1]

    def test_new_rows_get_new_ids(self, watch: Watch, bob_app: App, remote: HostedRepository) -> None:
        since_2026 = timezone.now().timestamp() - datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        new_life.begin()
        assert watches.watch(bob_app, remote.url).pk > max(watch.pk, since_2026 * 1000)

    def test_refused_files_are_tried_again(
        self, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        with alice.faults.put(ReceiverFault(status=422)):
            watches.watch(alice_app, remote.url)
            work()
        assert Parked.objects.filter(again=False).count() == 3
        new_life.begin()
        assert Parked.objects.filter(again=True).count() == 3

    def test_a_disabled_app_stays_disabled_and_is_told_when_it_is_enabled(self, another: Watch, bob: Receiver) -> None:
        new_life.begin()
        another.refresh_from_db()
        assert another.status == WatchStatus.FAILED
        assert another.asked_again
        assert not Delivered.objects.filter(watch=another, again=None).exists()

    def test_nobody_stays_signed_in(self, db: None) -> None:
        Session.objects.create(session_key="k", session_data="d", expire_date="2100-01-01T00:00:00Z")
        new_life.begin()
        assert not Session.objects.exists()
