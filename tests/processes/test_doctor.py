"""`manage.py doctor`: says what is wrong and what to do, above all while something is down."""

import ipaddress
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography.fernet import Fernet
from django.core.management import call_command
from pytest_django import Settings

from docora import condition
from docora.demo.githost import GitHost
from docora.processes import doctor
from docora.processes.doctor import Finding, Level
from repositories.models import Repository
from tests.support import warm_python
from tests.support.certificates import Authority
from tests.support.hostile_host import hostile_host
from tests.support.service import Service


@pytest.fixture(autouse=True)
def alone(settings: Settings) -> None:
    """No host outside of this machine is asked."""
    settings.GIT_HOSTS = ()
    condition._impatient_connection.cache_clear()


def found() -> dict[str, Finding]:
    return {finding.check: finding for finding in doctor.examine()}


def run(**environment: str) -> "subprocess.CompletedProcess[str]":
    variables = {"PATH": os.environ["PATH"], "DOCORA_GIT_HOSTS": "nowhere.invalid", **environment}
    return warm_python.run("doctor", "--json", environment=variables, timeout=60)


@pytest.mark.django_db(transaction=True)
def test_what_works_is_ok_and_says_what_it_is(valkey: redis.Redis) -> None:
    findings = found()
    for check in ("git", "database", "database server", "migrations", "keys", "redis", "redis server", "statistics"):
        assert findings[check].level == Level.OK, findings[check]
    assert findings["git"].says.startswith("git version 2.")
    assert "Valkey 9" in findings["redis server"].says
    for check in ("redis server eviction", "redis clock", "database clock", "redis server latency"):
        assert findings[check].level == Level.OK, findings[check]
    # The server of the tests keeps nothing, and no worker or scheduler runs beside it.
    assert findings["redis server persistence"].level == Level.WARNING
    assert "appendonly yes" in findings["redis server persistence"].remedy
    for queue in ("snapshots", "deliveries", "deliveries-slow"):
        assert findings[f"workers {queue}"].level == Level.ERROR
        assert queue in findings[f"workers {queue}"].remedy
    assert findings["scheduler"].says == "the scheduler has not ticked yet"


@pytest.mark.django_db(transaction=True)
def test_every_unmet_finding_has_its_remedy(valkey: redis.Redis) -> None:
    assert [finding for finding in doctor.examine() if finding.level != Level.OK and not finding.remedy] == []


@pytest.mark.django_db(transaction=True)
def test_a_redis_that_throws_jobs_away_is_an_error(valkey: redis.Redis) -> None:
    valkey.config_set("maxmemory-policy", "allkeys-lru")
    try:
        assert found()["redis server eviction"].level == Level.WARNING
        valkey.config_set("maxmemory", "100mb")
        assert found()["redis server eviction"].level == Level.ERROR
    finally:
        valkey.config_set("maxmemory-policy", "noeviction")
        valkey.config_set("maxmemory", "0")


@pytest.mark.django_db(transaction=True)
def test_keys_that_do_not_fit_are_named(alice_app: object, valkey: redis.Redis, settings: Settings) -> None:
    settings.ENCRYPTION_KEYS = [Fernet.generate_key().decode()]
    assert found()["keys"].level == Level.ERROR
    assert "ENCRYPTION_KEYS" in found()["keys"].remedy


@pytest.mark.parametrize(
    ("seconds", "level"), [(0.1, Level.OK), (-3, Level.WARNING), (45, Level.ERROR)], ids=["0.1", "3 behind", "45 ahead"]
)
def test_clocks_that_differ(seconds: float, level: Level) -> None:
    finding = doctor._skew("redis clock", seconds)
    assert finding.level == level
    assert ("behind" if seconds < 0 else "ahead") in finding.says


def test_a_full_disk_is_an_error(settings: Settings, tmp_path: Path) -> None:
    settings.DATA_DIR = settings.REPOS_BASE_PATH = tmp_path / "not" / "there" / "yet"
    settings.DISK_RESERVE_BYTES = 0
    assert {finding.level for finding in doctor._disk("disk")} <= {Level.OK, Level.WARNING}
    settings.DISK_RESERVE_BYTES = 1 << 60
    assert {finding.level for finding in doctor._disk("disk")} == {Level.ERROR}


@pytest.mark.django_db(transaction=True)
class TestAGitHost:
    @pytest.mark.parametrize(
        ("days", "level", "says"),
        [
            pytest.param(19, Level.OK, "valid until", id="valid"),
            pytest.param(5, Level.WARNING, "days", id="about to expire"),
            pytest.param(-1, Level.WARNING, "certificate", id="expired"),
        ],
    )
    def test_is_dialled_and_its_certificate_read(
        self, days: int, level: Level, says: str, settings: Settings, tmp_path: Path
    ) -> None:
        authority = Authority(tmp_path)
        settings.GIT_CA_FILE = authority.file
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
        with hostile_host(authority.server(days=days)) as host:
            settings.GIT_HOSTS = (host.address,)
            finding = found()[f"git host {host.address}"]
        assert finding.level == level
        assert says in finding.says
        # The authority's own ends in ten days.
        assert found()["certificates DOCORA_GIT_CA_FILE"].level == Level.WARNING

    def test_without_tls_is_told_in_words_and_is_well_where_it_is_watched_so(self, git_host: GitHost) -> None:
        address = git_host.address
        finding = found()[f"git host {address}"]
        assert finding.level == Level.WARNING
        assert finding.says.startswith(f"no TLS with {address}: ")
        assert "_ssl.c" not in finding.says
        Repository.objects.create(url=f"http://{address}/acme/handbook", owner="acme", name="handbook")
        finding = found()[f"git host {address}"]
        assert (finding.level, finding.says) == (Level.OK, "it answers, over plain http")

    def test_on_a_private_address_is_not_dialled(self, settings: Settings) -> None:
        settings.GIT_HOSTS = ("127.0.0.1:1",)
        assert "is not a public address" in found()["git host 127.0.0.1:1"].says


def test_a_check_that_hangs_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(name: str) -> Any:
        time.sleep(60)

    monkeypatch.setattr(doctor, "_CHECKS", {"quick": lambda name: iter([doctor._ok(name, "fine")]), "redis": hang})
    monkeypatch.setattr(doctor, "PATIENCE", 0.3)
    findings = found()
    assert findings["quick"].says == "fine"
    assert findings["redis"].says == "no answer within 0.3 s"
    assert findings["redis"].remedy


@pytest.mark.slow
@pytest.mark.any_database
def test_it_answers_while_redis_and_the_database_are_down(data_dir: Path) -> None:
    down = {"DOCORA_DATA_DIR": str(data_dir), "DATABASE_URL": "postgres://docora@127.0.0.1:1/docora"}
    result = run(**down, REDIS_URL="redis://127.0.0.1:1/0")
    assert result.returncode == 1
    answer = json.loads(result.stdout)
    findings = {finding["check"]: finding for finding in answer["findings"]}
    assert answer["status"] == "error"
    assert findings["git"]["level"] == "ok"
    for check in ("database", "redis", "redis server", "database server", "workers"):
        assert findings[check]["level"] == "error"
        assert findings[check]["remedy"]
    assert "cannot be resolved" in findings["git host nowhere.invalid"]["says"]
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.any_database
def test_warnings_alone_are_no_failure() -> None:
    """On a service that is complete but for the host that it may watch."""
    with Service(DOCORA_GIT_HOSTS="nowhere.invalid", SCAN_INTERVAL="1") as service:
        said = service.manage("doctor")
    assert said.returncode == 0
    assert "0 errors" in said.stdout
    assert "nowhere.invalid cannot be resolved" in said.stdout
    assert "appendonly" in said.stdout


@pytest.mark.django_db(transaction=True)
def test_the_table_is_for_people(valkey: redis.Redis, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("doctor", no_color=True)
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "error    workers snapshots" in printed
    assert "→ Start one: manage.py up, or manage.py rqworker snapshots." in printed
