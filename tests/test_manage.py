"""manage.py in a shell whose settings are not those of the running Docora: it says so, and creates nothing."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from pytest_django import Settings

from repositories.base import places
from tests.support import warm_python

ROOT = Path(__file__).parent.parent


def manage(data_dir: Path, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir), **variables}
    return warm_python.run(*words, environment=environment)


@pytest.mark.parametrize(
    "words",
    [
        ("onboard", "App", "https://app.example.com"),
        ("rotate_encryption",),
        ("repolocks",),
        ("createsuperuser", "--noinput", "--username", "ann", "--email", "ann@example.com"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_beside_an_installation_names_both_places_and_creates_nothing(
    data_dir: Path, words: tuple[str, ...]
) -> None:
    elsewhere = data_dir / "elsewhere"
    elsewhere.mkdir()
    result = manage(elsewhere, *words)
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert f"database {elsewhere}/docora.sqlite3, Redis unix://{elsewhere}/valkey/valkey.sock" in line
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("words", [("check",), ("makemigrations", "--check", "--dry-run"), ("onboard", "--help")])
def test_a_command_that_needs_no_database_works_without_one_and_creates_nothing(
    data_dir: Path, words: tuple[str, ...]
) -> None:
    elsewhere = data_dir / "elsewhere"
    assert manage(elsewhere, *words).returncode == 0
    assert not elsewhere.exists()


def test_a_queue_that_is_not_there_is_named_in_a_line(data_dir: Path) -> None:
    result = manage(data_dir, "rqworker", "nobodys")
    assert result.returncode == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("CommandError: There is no queue nobodys. The queues are urgent, snapshots,")


def test_on_a_terminal_a_command_says_where_it_works(data_dir: Path) -> None:
    screen, terminal = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir), "REDIS_URL": "redis://:hunter2@h:1/0"}
    command = [sys.executable, "manage.py", "repolocks"]
    subprocess.run(command, cwd=ROOT, env=environment, stderr=terminal, check=False, timeout=120)
    os.close(terminal)
    shown = os.read(screen, 10_000).decode()
    os.close(screen)
    assert shown.startswith(f"docora: database {data_dir}/docora.sqlite3, Redis redis://h:1/0\r\n")


def test_the_places_are_named_without_passwords(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.REDIS_URL = "rediss://docora:hunter2@cache.example.com:6380/2?password=hunter2"
    postgresql = {"HOST": "db.example.com", "PORT": 5433, "NAME": "docora", "USER": "ann", "PASSWORD": "hunter2"}
    database = {"ENGINE": "django.db.backends.postgresql", **postgresql}
    monkeypatch.setitem(settings.DATABASES, "default", database)
    assert places.both() == "database postgresql://db.example.com:5433/docora, Redis rediss://cache.example.com:6380/2"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a database that is there, with keys of its own."""
    folder = tmp_path_factory.mktemp("installation")
    assert manage(folder, "migrate", REDIS_URL="redis://127.0.0.1:1/0").returncode == 0
    return f"sqlite:///{folder / 'docora.sqlite3'}"


@pytest.mark.slow
@pytest.mark.xdist_group("manage")
class TestOtherKeys:
    @pytest.mark.parametrize(
        "words", [("scheduler",), ("rqworker",), ("onboard", "App", "https://a.example"), ("rotate_encryption",)]
    )
    def test_nothing_starts_and_one_line_names_the_variable(
        self, data_dir: Path, url: str, words: tuple[str, ...]
    ) -> None:
        result = manage(data_dir, *words, DATABASE_URL=url, ENCRYPTION_KEYS=Fernet.generate_key().decode())
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert "ENCRYPTION_KEYS does not decrypt what is stored: add the key" in line

    def test_the_web_server_does_not_start_either(self, data_dir: Path, url: str) -> None:
        environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir), "DATABASE_URL": url}
        command = [
            sys.executable,
            "-m",
            "gunicorn",
            "docora.wsgi",
            "--bind",
            f"unix:{data_dir}/web",
            "--no-control-socket",
        ]
        result = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120
        )
        assert result.returncode == 3
        assert re.search(r"^docora: ENCRYPTION_KEYS does not decrypt what is stored", result.stderr, re.M)
        assert "Traceback" not in result.stderr

    def test_check_reports_it(self, data_dir: Path, url: str) -> None:
        result = manage(data_dir, "check", DATABASE_URL=url, ENCRYPTION_KEYS=Fernet.generate_key().decode())
        assert result.returncode == 1
        assert "(docora.E001) ENCRYPTION_KEYS does not decrypt" in result.stderr

    def test_a_missing_key_is_not_generated_beside_the_database_that_lacks_it(self, data_dir: Path, url: str) -> None:
        elsewhere = data_dir / "elsewhere"
        result = manage(elsewhere, "onboard", "App", "https://a.example", DATABASE_URL=url)
        assert result.returncode == 1
        (line,) = result.stderr.splitlines()
        assert line.startswith("docora: ENCRYPTION_KEYS is not set, and no key was generated in DOCORA_DATA_DIR")
        assert url.removeprefix("sqlite:///") in line
        assert not elsewhere.exists()
