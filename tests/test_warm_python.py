"""A command in a fork of a warm Python finds what it would find in a new one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import warm_python
from tests.support.service import ROOT

# What a process gets from whoever starts it, as the process sees it and as others do.
SHOW = """
import json, os, signal, sys, psutil
streams = [sys.stdin, sys.stdout, sys.stderr]
print(json.dumps({
    "words": [sys.argv, sys.orig_argv],
    "folders": [os.getcwd(), sys.path],
    "environment": dict(os.environ),
    "shown": psutil.Process().environ(),
    "typed": sys.stdin.read(),
    "streams": [[stream.encoding, stream.errors, stream.line_buffering, stream.isatty()] for stream in streams],
    "files": sorted(os.listdir("/proc/self/fd")),
    "signals": [str(signal.getsignal(number)) for number in signal.valid_signals()],
    "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "limits": [os.umask(0), os.getpgrp(), os.getsid(0)],
}))
"""
WORDS = ("shell", "--no-imports", "-v0", "-c", SHOW)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, every start is one of a new Python")


@pytest.fixture
def environment(data_dir: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "DOCORA_DATA_DIR": str(data_dir), "SOME_NAME": "ä word"}


def test_it_has_the_same_words_streams_environment_and_signals(environment: dict[str, str]) -> None:
    command = [sys.executable, warm_python.MANAGE, *WORDS]
    new = subprocess.run(
        command, cwd=ROOT, env=environment, input="typed\n", capture_output=True, text=True, check=True
    )
    warm = warm_python.run(*WORDS, environment=environment, typed="typed\n")
    assert (warm.returncode, warm.stderr) == (new.returncode, new.stderr)
    assert json.loads(warm.stdout) == json.loads(new.stdout)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL])
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_it_ignores_what_whoever_starts_it_ignores_by_now(
    environment: dict[str, str], handler: signal.Handlers, number: signal.Signals
) -> None:
    """As below nohup or in the background, where a test may have set the signal anew since the warm Python started."""
    before = signal.signal(number, handler)
    try:
        new = subprocess.run(
            [sys.executable, warm_python.MANAGE, *WORDS], cwd=ROOT, env=environment, capture_output=True, check=True
        )
        warm = warm_python.run(*WORDS, environment=environment)
    finally:
        signal.signal(number, before)
    assert json.loads(warm.stdout)["signals"] == json.loads(new.stdout)["signals"]
    signals = dict(zip(signal.valid_signals(), json.loads(warm.stdout)["signals"], strict=True))
    assert (signals[number] == str(signal.SIG_IGN)) == (handler is signal.SIG_IGN)


def test_its_exit_status_and_its_errors_are_those_of_the_command(environment: dict[str, str]) -> None:
    result = warm_python.run("no_such_command", environment=environment)
    assert result.returncode == 1
    assert "no_such_command" in result.stderr
    failed = warm_python.run("shell", "-v0", "-c", "1 / 0", environment=environment)
    assert failed.returncode == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_it_can_be_signalled_and_waited_for(environment: dict[str, str]) -> None:
    with Path(os.devnull).open("r+") as nothing:
        process = warm_python.start(
            "shell", "-c", "input()", environment=environment, stdin=os.pipe()[0], stdout=nothing, stderr=nothing
        )
    assert process.poll() is None
    assert psutil.Process(process.pid).is_running()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL
    process.kill()
