"""What Docora writes is for its owner alone, and secrets stay out of logs and argument lists."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import redis
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command

from docora.demo.githost import GitHost, HostedRepository
from docora.management.commands import up
from repositories.models import App
from tests.support import warm_python

ROOT = Path(__file__).parent.parent
KEY = "a key of the app's own"


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """As a distribution's shell has it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def python(environment: dict[str, str], *words: str) -> str:
    return subprocess.check_output([sys.executable, *words], cwd=ROOT, env=environment, text=True)


def manage(environment: dict[str, str], *words: str) -> None:
    result = warm_python.run(*words, environment=environment)
    assert result.returncode == 0, result.stderr


def open_to_others(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_socket() and path.stat().st_mode & 0o077]


def test_database_and_clones_are_for_their_owner_when_no_supervisor_made_them(
    data_dir: Path, git_host: GitHost, remote: HostedRepository, valkey: redis.Redis, valkey_socket: Path
) -> None:
    environment = {
        "PATH": os.environ["PATH"],
        "DOCORA_DATA_DIR": str(data_dir),
        "DOCORA_GIT_HOSTS": git_host.address,
        "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        "REDIS_URL": f"unix://{valkey_socket}",
    }
    manage(environment, "migrate", "-v0")
    watch = (
        "from repositories import accounts, models, watches;"
        "app_id = accounts.onboard('Docs', 'http://127.0.0.1:9').app_id;"
        f"watches.watch(models.App.objects.get(public_id=app_id), {remote.url!r})"
    )
    manage(environment, "shell", "--no-imports", "-c", watch)
    manage(environment, "rqworker", "snapshots", "--burst")
    assert (data_dir / "docora.sqlite3").exists()
    assert list((data_dir / "repos").rglob("HEAD"))
    assert open_to_others(data_dir) == []


def test_a_web_process_started_by_hand_writes_for_its_owner(data_dir: Path) -> None:
    """gunicorn imports docora.wsgi; what it runs with afterwards is what the process has then."""
    show = "import docora.wsgi, os; print(os.umask(0))"
    assert python({"DOCORA_DATA_DIR": str(data_dir)}, "-c", show).strip() == str(0o077)


@pytest.mark.django_db(transaction=True)
def test_the_first_password_is_printed_on_a_terminal_only(tmp_path: Path) -> None:
    file, password = tmp_path / "first-password", up._create_first_admin()
    assert password
    terminal, log = Terminal(), StringIO()
    up.Command(stdout=terminal)._tell_first_password(file, password)
    assert password in terminal.getvalue()
    assert not file.exists()

    file.write_text("of an earlier database")
    up.Command(stdout=log)._tell_first_password(file, password)
    assert password not in log.getvalue()
    assert str(file) in log.getvalue()
    assert file.stat().st_mode & 0o777 == 0o600
    assert authenticate(username="admin", password=file.read_text().strip())
    assert up._create_first_admin() is None


def onboarded_with(*options: str, stderr: StringIO | None = None) -> str:
    out = StringIO()
    call_command("onboard", "Docs", "https://docs.example.com", "--json", *options, stdout=out, stderr=stderr)
    return App.objects.get(public_id=json.loads(out.getvalue())["app_id"]).webhook_key


@pytest.mark.django_db
def test_a_webhook_key_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings = StringIO()
    monkeypatch.setattr("sys.stdin", StringIO(f"{KEY}\n"))
    assert onboarded_with("--webhook-key", "-", stderr=warnings) == KEY
    assert "argument" not in warnings.getvalue()
    with pytest.raises(CommandError, match="no webhook key"):
        onboarded_with("--webhook-key", "-")


@pytest.mark.django_db
def test_a_webhook_key_in_the_arguments_still_works_with_a_warning() -> None:
    warnings = StringIO()
    assert onboarded_with("--webhook-key", KEY, stderr=warnings) == KEY
    assert "--webhook-key -" in warnings.getvalue()
    assert KEY not in warnings.getvalue()
