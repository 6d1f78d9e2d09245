"""Every command explains itself, and is where an operator looks for it."""

import re
from pathlib import Path

import pytest
from django.core.checks import Tags
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


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"check", "rqworker"}))
def test_before_a_command_at_most_the_database_is_checked(name: str) -> None:
    """Not the code: that would import every view, and double the time that a command takes."""
    checks = load_command_class(COMMANDS[name], name).requires_system_checks
    assert checks in ([], [Tags.database])


@pytest.mark.parametrize("page", ["README.md", "docs/running.md"])
def test_every_command_is_in_the_table_of_commands(page: str) -> None:
    assert set(COMMANDS) - in_tables((ROOT / page).read_text()) == set()


def test_every_check_of_ready_and_every_kind_of_alert_is_described() -> None:
    described = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/running.md").read_text(), re.M))
    assert {*condition.CHECKS, *condition.CONCERNS} - described == set()
    assert condition.CONCERNS.keys() == condition.TITLES.keys()


def test_the_readme_names_hosts_and_trusted_networks_before_the_first_call() -> None:
    text = (ROOT / "README.md").read_text()
    order = ["make run", "DOCORA_GIT_HOSTS", "DOCORA_TRUSTED_NETWORKS", "manage.py onboard", "curl"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)


def test_the_page_on_running_has_a_key_rotation_in_steps_that_ends_the_old_key() -> None:
    steps = re.findall(r"^\d\. .*?(?=^\d\. |^\S)", _section("Keys"), re.M | re.S)
    words = [
        "Make a new one",
        "ENCRYPTION_KEYS=NEW,OLD",
        "Restart",
        "manage.py rotate_encryption",
        "Remove the old key",
    ]
    assert [word for step, word in zip(steps, words, strict=True) if word not in step] == []


def test_the_page_on_running_tells_the_format_of_logs_and_the_mode_of_backups() -> None:
    assert "DOCORA_LOG_FORMAT" in _section("Logs")
    assert "`GET /ready`" in _section("Health")
    assert "owner alone" in re.sub(r"\s+", " ", _section("Backup"))


def _section(heading: str) -> str:
    """Of docs/running.md, up to the next heading."""
    return re.split(rf"^##+ {heading}\n", (ROOT / "docs/running.md").read_text(), flags=re.M)[1].split("\n## ")[0]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_says_what_it_does(name: str) -> None:
    command = load_command_class(COMMANDS[name], name)
    assert len(command.help) > 20
    parser = command.create_parser("manage.py", name)
    assert [action.dest for action in parser._actions if not action.help and action.dest != "args"] == []
