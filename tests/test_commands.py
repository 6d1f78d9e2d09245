"""Every command explains itself, and is where an operator looks for it."""

import re
from pathlib import Path

import pytest
from django.core.management import load_command_class

from docora import condition

ROOT = Path(__file__).parent.parent
COMMANDS = {
    path.stem: path.parts[-4]
    for room in ("docora", "repositories", "snapshots")
    for path in (ROOT / room / "management" / "commands").glob("[a-z]*.py")
}


def in_tables(text: str) -> set[str]:
    """The commands that the first cells of tables name."""
    cells = re.findall(r"^\| (`[^|]*) \|", text, re.M)
    return {word for cell in cells for word in re.findall(r"`(?:manage\.py )?(\w+)", cell)}


@pytest.mark.parametrize("page", ["README.md", "docs/running.md"])
def test_every_command_is_in_the_table_of_commands(page: str) -> None:
    assert set(COMMANDS) - in_tables((ROOT / page).read_text()) == set()


def test_every_check_of_ready_and_every_kind_of_alert_is_described() -> None:
    described = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/running.md").read_text(), re.M))
    assert {*condition.CHECKS, *condition.CONCERNS} - described == set()
    assert condition.CONCERNS.keys() == condition.TITLES.keys()


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_says_what_it_does(name: str) -> None:
    command = load_command_class(COMMANDS[name], name)
    assert len(command.help) > 20
    parser = command.create_parser("manage.py", name)
    assert [action.dest for action in parser._actions if not action.help and action.dest != "args"] == []
