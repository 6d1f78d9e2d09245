"""Every command in the pages for operators is executed in a scratch service, or has a written reason why not.

A command that is new in a page fails here until it is in one of the lists. One that a page names without its words is
covered by the same command with words.
"""

import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from docora.demo.githost import GitHost
from tests.support import postgres
from tests.support.service import Service, free_port, wait_until
from tests.test_commands import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/running.md", "docs/upgrade.md", "docs/runbook.md")
PROGRAMS = (
    "manage.py",
    "make",
    "docker",
    "systemctl",
    "git",
    "curl",
    "du",
    "redis-cli",
    "deploy/check",
    ".venv/bin/python",
)
RECEIVER = "WEBHOOK_KEY=choose-a-long-secret .venv/bin/python -m docora.demo.receiver --port 9000"
ONBOARD = (
    'echo choose-a-long-secret | .venv/bin/python manage.py onboard "My search" http://127.0.0.1:9000 --webhook-key -'
)
WATCH = (
    'curl -X POST http://127.0.0.1:8000/api/v1/repositories -H "Authorization: Bearer docora_…"'
    """ -H "Content-Type: application/json" -d '{"github_url": "https://github.com/owner/name"}'"""
)
UNWATCH = 'curl -X DELETE http://127.0.0.1:8000/api/v1/repositories/repo_… -H "Authorization: Bearer docora_…"'
# Executed below, in this order, with the words in capitals, the addresses and the folders of the scratch service.
BEFORE_A_WATCH = (
    "export DOCORA_TRUSTED_NETWORKS=127.0.0.0/8",
    "manage.py migrate",
    "manage.py doctor",
    "manage.py check --deploy",
    "curl -i http://127.0.0.1:8000/health",
    '.venv/bin/python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"',
    "manage.py onboard NAME BASE_URL",
)
BESIDE_A_WATCH = (
    "manage.py apps",
    "manage.py watches",
    "manage.py snapshot URL_OR_ID --wait",
    "manage.py redeliver APP REPO …",
    "manage.py ping APP",
    "manage.py host_hook HOST",
    "manage.py rotate_encryption",
    "manage.py tick",
    "manage.py repolocks",
    "manage.py reconcile",
    'du -s "$REPOS_BASE_PATH"',
    "manage.py backup /backup/docora-before-upgrade.tar.gz",
    "manage.py backup /backup/docora-monday.tar.gz --keys /safe/docora-keys.env",
)
AFTER_A_WATCH = (
    "manage.py rotate_bearer APP --overlap HOURS",
    "manage.py disable_app APP",
    "manage.py enable_app APP",
    "manage.py delete_app APP",
)
RESTORE = "manage.py restore /backup/docora-monday.tar.gz --keys /safe/docora-keys.env"
EXECUTED = {RECEIVER, *BEFORE_A_WATCH, ONBOARD, WATCH, *BESIDE_A_WATCH, UNWATCH, *AFTER_A_WATCH, RESTORE}
# Their words are given to the command's own parser. They run until they are stopped, and other tests start them so.
ONLY_PARSED = {
    "manage.py createsuperuser",  # asks at a terminal
    "manage.py changepassword admin",  # the same
    "manage.py rqworker snapshots deliveries",
    "manage.py rqworker deliveries-slow",
    "manage.py rqworker urgent",
    "manage.py scheduler",
    "manage.py up --port 8080",
}
# Not executed here, with the reason, or with what executes it.
ELSEWHERE = {
    "make run": "installs; tests/journeys/test_up.py starts what it starts",
    "make test": "the tests are what it runs",
    "make demo": "tests/journeys/test_demo.py runs what it runs",
    "make check": "the checks of the code: a part of .ci/run",
    "make help": "prints the comments of the Makefile",
    "manage.py demo": "tests/journeys/test_demo.py",
    "manage.py repolocks --release KEY": "needs a lock that is held: tests/repositories/repo_lock/test_repolocks.py",
    "git pull": "needs a remote",
    "gunicorn docora.wsgi": "tests/test_private_data.py starts a web process so",
    "ACL SETUSER docora": "tests/journeys/test_shared_redis.py",
    ".venv/bin/python -m pip install": "deploy/check does it in the image",
    'redis-cli -u "$REDIS_URL" ping': "a program of Redis, which is not part of Docora",
    "docker build": "deploy/check builds the image without an engine",
    "docker compose": "deploy/check holds the file against its schema; the commands need an engine",
    "cp deploy/systemd/": "deploy/check verifies the units; the commands change the machine",
    "systemctl ": "the same",
}


def documented() -> Iterator[str]:
    for page in PAGES:
        text = (ROOT / page).read_text()
        yield from _in_blocks(text.replace("\\\n", " "))
        for code in re.findall(r"`([^`]+)`", text):
            if code.split()[0] in PROGRAMS and len(code.split()) > 1:
                yield " ".join(code.split())
        for cell in re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE):
            yield from (f"manage.py {code}" for code in re.findall(r"`([^`]+)`", cell) if code.split()[0] in COMMANDS)


def _in_blocks(text: str) -> Iterator[str]:
    """Each line of a block of code that is a command, without its comment; a line that goes on is one."""
    for line in re.findall(r"^ {4,}(\S.*)$", text, re.MULTILINE):
        command = " ".join(re.sub(r"\s+# .*$", "", line).split())
        is_data = command.startswith(("{", '"', "["))
        is_a_folder = re.match(r"[a-z_]+/ ", command)
        if not is_data and not is_a_folder:
            yield command


def is_known(command: str) -> bool:
    is_named = any(f"{known} ".startswith(f"{command} ") for known in EXECUTED | ONLY_PARSED)
    return is_named or command.startswith(tuple(ELSEWHERE))


def test_every_command_is_in_a_list_and_every_list_is_of_commands() -> None:
    found = set(documented())
    assert sorted(command for command in found if not is_known(command)) == []
    assert sorted((EXECUTED | ONLY_PARSED) - found) == []
    assert [start for start in ELSEWHERE if not any(command.startswith(start) for command in found)] == []


@pytest.mark.parametrize("command", sorted(ONLY_PARSED))
def test_the_words_are_those_that_the_command_takes(command: str) -> None:
    name, *words = shlex.split(command.removeprefix("manage.py "))
    load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(words)


class Shell:
    """Executes what the pages say, with the words of this service in place of theirs."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        port, manage = free_port(), f"{sys.executable} {ROOT / 'manage.py'}"
        self.words = {
            ".venv/bin/python manage.py": manage,
            "manage.py": manage,
            ".venv/bin/python": sys.executable,
            "http://127.0.0.1:8000": service.url,
            "http://127.0.0.1:9000": f"http://127.0.0.1:{port}",
            "--port 9000": f"--port {port}",
            "NAME BASE_URL": f"Another http://127.0.0.1:{port}",
            "HOURS": "1",
            " /backup/": f" {folder}/backup-",
            " /safe/": f" {folder}/safe-",
        }

    def spell_out(self, command: str) -> str:
        theirs = "|".join(map(re.escape, self.words))
        return re.sub(theirs, lambda found: self.words[found[0]], command)

    def run(self, command: str) -> str:
        """What needs no shell is run without one, in a fork that starts at once."""
        assert command in EXECUTED
        if command.startswith("manage.py "):
            _python, _manage, *words = shlex.split(self.spell_out(command))
            return self.service.manage(*words, typed="yes\n").stdout
        done = subprocess.run(
            ["sh", "-c", self.spell_out(command)],
            env=self.service.environment,
            input="yes\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
        return done.stdout

    def start_receiver(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            ["sh", "-c", f"exec env {self.spell_out(RECEIVER)}"],
            cwd=ROOT,
            env=self.service.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        assert process.stdout.readline().startswith("Listening on")
        return process


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with GitHost(tmp_path / "host") as host:
        host.create("acme/handbook").commit({"README.md": "# Handbook\n"})
        service = Service(
            PATH=postgres.path_with_programs(),
            DOCORA_GIT_HOSTS=host.address,
            DOCORA_TRUSTED_NETWORKS="127.0.0.0/8",
        )
        service.environment["REPOS_BASE_PATH"] = str(service.data / "repos")
        shell = Shell(service, tmp_path)
        shell.words |= {"https://github.com/owner/name": f"http://{host.address}/acme/handbook", "HOST": host.address}
        receiver = None
        try:
            service.start()
            receiver = shell.start_receiver()
            yield shell
        finally:
            service.close()
            if receiver:
                receiver.terminate()
                receiver.communicate(timeout=20)


@pytest.mark.slow
def test_the_commands_work_in_a_service(shell: Shell) -> None:
    for command in BEFORE_A_WATCH:
        shell.run(command)
    shown = dict(re.findall(r"^(app id|bearer token) +(\S+)$", shell.run(ONBOARD), re.MULTILINE))
    shell.words |= {"APP": shown["app id"], "docora_…": shown["bearer token"]}
    repository = json.loads(shell.run(WATCH))["repository_id"]
    shell.words |= {"repo_…": repository, "URL_OR_ID": repository, "REPO …": f"{repository} --everything --wait"}
    wait_until(lambda: _is_synced(shell.service, shown["bearer token"]), "the repository is synced")
    for command in (*BESIDE_A_WATCH, UNWATCH, *AFTER_A_WATCH):
        shell.run(command)
    shell.service.stop()
    elsewhere = Service(PATH=shell.service.environment["PATH"])
    there = Shell(elsewhere, Path(shell.words[" /backup/"].strip()).parent)
    try:
        there.run(RESTORE)
    finally:
        elsewhere.close()


def _is_synced(service: Service, bearer_token: str) -> bool:
    headers = {"Authorization": f"Bearer {bearer_token}"}
    request = urllib.request.Request(f"{service.url}/api/v1/repositories", headers=headers)  # noqa: S310  our own server
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310  the same
        return [row["status"] for row in json.load(response)["repositories"]] == ["synced"]
