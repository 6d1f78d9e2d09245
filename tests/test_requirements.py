"""The locked requirements, and what `make check` says of their known flaws."""

import re
import runpy
from pathlib import Path

import pytest

from tests.support.service import ROOT

_FLAWED = '{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1"}]}'
_SOUND = '{"name": "b", "version": "2", "vulns": []}'
_UNKNOWN = '{"name": "c", "skip_reason": "not found"}'


@pytest.mark.parametrize("name", ["requirements.txt", "requirements-dev.txt"])
def test_every_locked_requirement_has_a_hash(name: str) -> None:
    locked = re.split(r"\n(?=\S)", (ROOT / name).read_text())
    assert len(locked) > 10
    assert [package for package in locked if "--hash=sha256:" not in package] == []


@pytest.mark.parametrize(
    ("answer", "status", "says"),
    [
        (f'{{"dependencies": [{_FLAWED}, {_SOUND}]}}', 1, "a 1 PYSEC-1"),
        (f'{{"dependencies": [{_SOUND}, {_UNKNOWN}]}}', 0, "Audited 1 packages, 0 vulnerable; 1 could not"),
        ("", 0, "Not audited"),
    ],
)
def test_the_audit_fails_for_a_known_flaw_alone(
    answer: str, status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip-audit asks a public list that tests must not depend on: a script that prints its answer stands for it."""
    stand_in = tmp_path / "pip-audit"
    stand_in.write_text(f"#!/bin/sh\necho '{answer}'\n")
    stand_in.chmod(0o755)
    main = runpy.run_path(str(ROOT / ".ci" / "audit"))["main"]
    main.__globals__["PIP_AUDIT"] = stand_in
    assert main() == status
    assert says in capsys.readouterr().out
