"""docs/security.md names a test for each attack: every one of them must be there."""

import re

from tests.support.service import ROOT


def test_every_attack_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    rows = [row for row in page.partition("## The attacks")[2].splitlines() if re.match(r"\|(?! attack |---)", row)]
    assert len(rows) > 10
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, f"no test is named: {row}"
        assert [name for name in named if f"def {name}(" not in code] == []
