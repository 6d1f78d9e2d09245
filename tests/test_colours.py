"""Colours are for terminals, and for nobody who has set NO_COLOR."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service import READY, Service
from tests.support.terminal import COLOUR, shown_by

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}, {"NO_COLOR": ""}], ids=["as it is", "1", "empty"])
def test_up_on_a_terminal_is_coloured_unless_told_otherwise(variables: dict[str, str]) -> None:
    service = Service(**variables, TERM="xterm").prepare()
    try:
        shown = shown_by(service.launch_on, until=READY)
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


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["as it is", "1"])
def test_an_error_is_red_on_a_terminal(taken: socket.socket, variables: dict[str, str]) -> None:
    service = Service(**variables, TERM="xterm", PORT=str(taken.getsockname()[1]))
    try:
        shown = shown_by(service.launch_on)
    finally:
        service.close()
    assert "docora: port" in shown
    assert ("\033[31;1mdocora: port" in shown) == (COLOUR in shown) == (not variables)


def test_nothing_is_coloured_in_a_pipe(data_dir: Path, taken: socket.socket) -> None:
    command = [sys.executable, "manage.py", "up", "--port", str(taken.getsockname()[1])]
    environment = {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir)}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert "docora: port" in result.stderr
    assert "Docora" in result.stdout
    assert COLOUR not in result.stdout + result.stderr
