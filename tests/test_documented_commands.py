"""Every command in the pages for operators is executed in a scratch service, or has a written reason why not.

A command that is new in a page fails here until it is in one of the lists.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from tests.support import postgres
from tests.support.service import Service

ROOT = Path(__file__).parent.parent
PAGES = ("docs/running.md", "docs/upgrade.md")
# Executed below, in this order, as they are written but for the folders.
EXECUTED = {
    "manage.py doctor",
    "manage.py migrate",
    "manage.py check --deploy",
    "manage.py backup /backup/docora-before-upgrade.tar.gz",
    "manage.py backup /backup/docora-monday.tar.gz --keys /safe/docora-keys.env",
    "manage.py restore /backup/docora-monday.tar.gz --keys /safe/docora-keys.env",
}
# Their words are given to the command's own parser. They run until they are stopped, and other tests start them so.
ONLY_PARSED = {
    "manage.py createsuperuser",  # asks at a terminal
    "manage.py rqworker snapshots deliveries",
    "manage.py rqworker deliveries-slow",
    "manage.py rqworker urgent",
    "manage.py scheduler",
}
# Not executed here, with what does.
ELSEWHERE = {
    "make run": "installs; tests/journeys/test_up.py starts what it starts",
    "git pull": "needs a remote",
    "gunicorn docora.wsgi": "tests/test_private_data.py starts a web process so",
    "ACL SETUSER docora": "tests/journeys/test_shared_redis.py",
    ".venv/bin/python -m pip install": "deploy/check does it in the image",
    "docker compose": "deploy/check holds the file against its schema; the commands need an engine",
    "cp deploy/systemd/": "deploy/check verifies the units; the commands change the machine",
    "systemctl ": "the same",
}


def documented() -> Iterator[str]:
    """Each line of a block of code that is a command, without its comment; a line that goes on is one."""
    for page in PAGES:
        text = (ROOT / page).read_text().replace("\\\n", " ")
        for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE):
            command = re.sub(r"\s+# .*$", "", line).strip()
            if not command.startswith(("{", '"', "[")):  # an example of data
                yield command


def is_known(command: str) -> bool:
    return command in EXECUTED | ONLY_PARSED or command.startswith(tuple(ELSEWHERE))


def test_every_command_is_in_a_list_and_every_list_is_of_commands() -> None:
    found = set(documented())
    assert sorted(command for command in found if not is_known(command)) == []
    assert sorted((EXECUTED | ONLY_PARSED) - found) == []
    assert [start for start in ELSEWHERE if not any(command.startswith(start) for command in found)] == []


@pytest.mark.parametrize("command", sorted(ONLY_PARSED))
def test_the_words_are_those_that_the_command_takes(command: str) -> None:
    name, *words = shlex.split(command.removeprefix("manage.py "))
    load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(words)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


@pytest.mark.slow
def test_the_commands_work_in_a_service(service: Service, tmp_path: Path) -> None:
    service.environment |= {"PATH": postgres.path_with_programs(), "DOCORA_GIT_HOSTS": "nowhere.invalid"}
    for folder in ("backup", "safe"):
        (tmp_path / folder).mkdir()
    service.start()

    def run(command: str, there: Service = service) -> None:
        assert command in EXECUTED
        there.manage(*(_moved(word, tmp_path) for word in shlex.split(command)[1:]))

    run("manage.py migrate")
    run("manage.py doctor")
    run("manage.py check --deploy")
    run("manage.py backup /backup/docora-before-upgrade.tar.gz")
    run("manage.py backup /backup/docora-monday.tar.gz --keys /safe/docora-keys.env")
    service.stop()
    elsewhere = Service(PATH=service.environment["PATH"])
    try:
        run("manage.py restore /backup/docora-monday.tar.gz --keys /safe/docora-keys.env", elsewhere)
    finally:
        elsewhere.close()


def _moved(word: str, folder: Path) -> str:
    return re.sub(r"^/(?=backup/|safe/)", f"{folder}/", word)
