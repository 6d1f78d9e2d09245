"""Colours are for terminals, and for nobody who has set NO_COLOR."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import READY, Service
from tests.support.terminal import COLOUR, on_terminal

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"NO_COLOR": ""}], ids=["as it is", "1", "empty"])
def test_up_on_a_terminal_is_coloured_unless_told_otherwise(variables: dict[str, str]) -> None:
    service = Service(**variables).prepare()
    try:
        command = [sys.executable, "manage.py", "up"]
        shown = on_terminal(command, ROOT, service.environment, until=READY)
    finally:
        service.close()
    assert "Stopped: nothing is left running." in shown
    if variables.get("NO_COLOR"):
        assert COLOUR not in shown
        assert "\nReady after" in shown
    else:
        assert "\033[32;1mReady after" in shown
        assert f"Admin              \033[1mhttp://127.0.0.1:{service.port}/admin/\033[0m" in shown


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """A port that another program has: the shortest way to an error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


def up(data_dir: Path, taken: socket.socket, **variables: str) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "manage.py", "up", "--port", str(taken.getsockname()[1])]
    return command, {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir), **variables}


def test_an_error_is_red_on_a_terminal(data_dir: Path, taken: socket.socket) -> None:
    command, environment = up(data_dir, taken)
    assert "\033[31;1mdocora: port" in on_terminal(command, ROOT, environment)
    assert COLOUR not in on_terminal(command, ROOT, environment | {"NO_COLOR": "1"})


def test_nothing_is_coloured_in_a_pipe(data_dir: Path, taken: socket.socket) -> None:
    command, environment = up(data_dir, taken)
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "docora: port" in result.stderr
    assert "Docora" in result.stdout
    assert COLOUR not in result.stdout + result.stderr
