"""The environment: every variable documented, every wrong value named."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet
from django.db import connection
from django.test.utils import CaptureQueriesContext

from docora import env
from tests.support import warm_python

ROOT = Path(__file__).parent.parent
# Words in capitals that the pages and the files of deploy/ name, and that no setting of Docora is.
NOT_SETTINGS = {
    "DOCORA_HOST": "of compose.yaml and its proxy, which make settings of it",
    "POSTGRES_DB": "of the image of PostgreSQL",
    "POSTGRES_PASSWORD": "the same",
    "POSTGRES_USER": "the same",
    "NO_COLOR": "read by manage.py",
    "WEBHOOK_KEY": "read by the demo's receiver",
    "TEST_DATABASE": "read by the tests",
    "BENCH_PATH": "read by the Makefile",
    "BENCH_REPOSITORIES": "read by the benchmarks",
    "BUILDAH_ISOLATION": "of buildah",
    "STORAGE_DRIVER": "the same",
    "SYSTEMD_UNIT_PATH": "of systemd",
    "GIT_DIR": "of git",
    "BASE_URL": "a word of a command",
    "URL_OR_ID": "the same",
    "JOB_FUNCTIONS": "a name in the code",
    "PR_SET_PDEATHSIG": "a name of Linux",
}


def check(data_dir: Path, *, command: str = "check", **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir), **variables}
    return warm_python.run(command, environment=environment)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("REPO_LOCK_TTL", "soon", "a number of seconds greater than 0"),
        ("REPO_LOCK_TTL", "nan", "a number of seconds greater than 0"),
        ("SCAN_CONCURRENCY", "0", "a whole number of at least 1"),
        ("PORT", "70000", "at most 65535"),
        ("DOCORA_TRUSTED_NETWORKS", "10.0.0.1/8", "networks"),
        ("DOCORA_GIT_HOSTS", "https://github.com", "host names"),
        ("DJANGO_DEBUG", "maybe", "true or false"),
        ("DATABASE_URL", "mongodb://x", "a database URL"),
        ("DOCORA_LOG_LEVEL", "LOUD", "DEBUG"),
        ("DOCORA_LOG_FORMAT", "xml", "pretty"),
    ],
)
def test_a_wrong_value_stops_the_start_with_its_name(data_dir: Path, name: str, value: str, expected: str) -> None:
    result = check(data_dir, **{name: value})
    assert result.returncode == 1
    assert result.stderr.startswith(f"docora: {name}: expected")
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", ["ENCRYPTION_KEYS", "ENCRYPTION_KEY"])
def test_a_wrong_encryption_key_is_not_printed(data_dir: Path, name: str) -> None:
    result = check(data_dir, **{name: "hunter2"})
    assert result.stderr.startswith(f"docora: {name}: expected Fernet keys")
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize("key", [{}, {"DOCORA_GITHUB_APP_PRIVATE_KEY": "hunter2"}])
def test_a_github_app_without_its_key_stops_the_start_and_prints_no_key(data_dir: Path, key: dict[str, str]) -> None:
    result = check(data_dir, DOCORA_GITHUB_APP_ID="1", **key)
    assert result.stderr.startswith("docora: DOCORA_GITHUB_APP_PRIVATE_KEY: expected an RSA private key")
    assert "hunter2" not in result.stderr


def test_a_short_token_for_metrics_is_refused_and_not_printed(data_dir: Path) -> None:
    result = check(data_dir, DOCORA_METRICS_TOKEN="hunter2")
    assert result.stderr == "docora: DOCORA_METRICS_TOKEN: expected text of at least 16 characters\n"


def test_the_one_key_of_earlier_installations_still_decrypts(data_dir: Path) -> None:
    old, new = (Fernet.generate_key().decode() for _ in range(2))
    show = ["-c", "from docora.settings import ENCRYPTION_KEYS; print(*ENCRYPTION_KEYS)"]
    environment = {"DOCORA_DATA_DIR": str(data_dir), "ENCRYPTION_KEY": old}
    for keys, expected in (({}, [old]), ({"ENCRYPTION_KEYS": new}, [new, old])):
        shown = subprocess.check_output([sys.executable, *show], cwd=ROOT, env=environment | keys, text=True)
        assert shown.split() == expected
    assert not (data_dir / "keys" / "encryption_key").exists()


def test_a_new_data_directory_and_the_keys_that_are_generated_once_are_for_their_owner_only(data_dir: Path) -> None:
    made = data_dir / "made" / "here"
    assert check(made, command="migrate").returncode == 0
    assert made.stat().st_mode & 0o777 == 0o700
    keys = {path.name: path.read_text() for path in (made / "keys").iterdir()}
    assert set(keys) == {"django_secret_key", "encryption_key"}
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (made / "keys").iterdir())
    assert check(made).returncode == 0
    assert {path.name: path.read_text() for path in (made / "keys").iterdir()} == keys


def test_a_command_runs_also_where_nobody_reads_what_it_prints(data_dir: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir)}
    command = ["sh", "-c", 'exec "$0" manage.py check <&- >&- 2>&-', sys.executable]
    assert subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def test_every_setting_is_documented_as_it_is() -> None:
    documented = [
        tuple(cell.strip() for cell in line.strip("|\n").split("|"))
        for line in (ROOT / "docs" / "settings.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    declared = [(f"`{s.name}`", s.kind, s.default or "none", s.meaning) for s in env.SETTINGS.values()]
    assert documented == declared


def named_variables() -> dict[str, set[str]]:
    """Each word in capitals with an underscore, and the files that name it."""
    files = ["compose.yaml", "Dockerfile", "README.md", "CONTRIBUTING.md", "SECURITY.md"]
    folders = [path for name in ("docs", "deploy") for path in (ROOT / name).rglob("*") if path.suffix != ".png"]
    found: dict[str, set[str]] = {}
    for path in (*map(ROOT.joinpath, files), *filter(Path.is_file, folders)):
        for word in re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", path.read_text(errors="replace")):
            found.setdefault(word, set()).add(str(path.relative_to(ROOT)))
    return found


def test_every_variable_that_a_page_or_a_file_of_the_deployment_names_is_one_that_is_read() -> None:
    found = named_variables()
    unknown = {word: files for word, files in found.items() if word not in {*env.SETTINGS, *NOT_SETTINGS}}
    assert unknown == {}
    assert sorted(NOT_SETTINGS.keys() - found) == []


def test_what_compose_gives_to_docora_are_settings() -> None:
    text = (ROOT / "compose.yaml").read_text()
    given = text.split("    environment:\n")[1].split("    volumes:")[0]
    names = re.findall(r"^      (\w+):", given, re.MULTILINE)
    assert len(names) > 4
    assert sorted(set(names) - env.SETTINGS.keys()) == []


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no time zone")
@pytest.mark.django_db(transaction=True)
def test_postgresql_hears_of_the_time_zone_with_the_connection() -> None:
    connection.close()
    with CaptureQueriesContext(connection) as captured:
        connection.close()
        connection.ensure_connection()
        assert connection.connection.info.parameter_status("TimeZone") == "UTC"
    assert captured.captured_queries == []
