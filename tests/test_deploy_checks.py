"""`manage.py check --deploy` names what is unsafe in production, by stable ids."""

import os
import re
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.support import warm_python

ROOT = Path(__file__).parent.parent
SAFE = {
    "DJANGO_SECRET_KEY": "a-long-secret-that-is-in-no-file-beside-the-data-0123456789",
    "ENCRYPTION_KEYS": Fernet.generate_key().decode(),
    "DOCORA_SECURE": "true",
    "DJANGO_ALLOWED_HOSTS": "docora.example.com",
    "DATABASE_URL": "postgres://docora@db.example.com/docora",
    "REDIS_URL": "redis://redis.example.com/0",
}


def warned_of(data: Path, variables: dict[str, str]) -> set[str]:
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data), **variables}
    result = warm_python.run("check", "--deploy", environment=environment)
    assert result.returncode == 0, result.stderr
    return set(re.findall(r"\(docora\.(\w\d+)\)", result.stdout + result.stderr))


def test_a_production_setting_is_not_warned_of(data_dir: Path) -> None:
    assert warned_of(data_dir, SAFE) == set()


def test_the_embedded_default_is_warned_of(data_dir: Path) -> None:
    assert warned_of(data_dir, {}) == {"W001", "W002", "W004", "W006", "I001", "I002"}


@pytest.mark.parametrize(
    "risks",
    [
        {"W001": ("DJANGO_SECRET_KEY", ""), "W005": ("DJANGO_ALLOWED_HOSTS", "*"), "I001": ("DATABASE_URL", "")},
        {"W002": ("ENCRYPTION_KEYS", ""), "W003": ("DJANGO_DEBUG", "true"), "I002": ("REDIS_URL", "")},
        {
            "W004": ("DOCORA_SECURE", "false"),
            "W006": ("DJANGO_ALLOWED_HOSTS", "localhost"),
            "W007": ("DOCORA_TRUSTED_NETWORKS", "10.0.0.0/8,::/0"),
        },
    ],
    ids="+".join,
)
def test_each_risk_has_its_own_id(data_dir: Path, risks: dict[str, tuple[str, str]]) -> None:
    assert warned_of(data_dir, SAFE | dict(risks.values())) == risks.keys()


def test_every_id_is_documented_and_no_other() -> None:
    defined = set(re.findall(r'id="docora\.(\w\d+)"', (ROOT / "docora" / "checks.py").read_text()))
    documented = re.findall(r"^\| `docora\.(\w\d+)` \|", (ROOT / "docs" / "running.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(defined)
