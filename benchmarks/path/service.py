"""`manage.py up` in a folder of its own, with its defaults, and a helper process beside it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
_READY = "Ctrl-C stops all of it."
_START_PATIENCE = 120
_STOP_PATIENCE = 60
# Planned looks would come between: a day is longer than any run.
_NEVER = "86400"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Service:
    """Runs until `stop`."""

    def __init__(self, folder: Path, git_address: str, *, database_url: str, settings: dict[str, str]) -> None:
        self._port = free_port()
        self._log = folder / "terminal.txt"
        data = folder / "data"
        data.mkdir()
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(data),
            "PORT": str(self._port),
            "DOCORA_DATA_DIR": str(data),
            "DOCORA_GIT_HOSTS": git_address,
            "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
            "RESCAN_INTERVAL": _NEVER,
            "DOCORA_MIN_RESCAN_INTERVAL": _NEVER,
            "DOCORA_STOP_GRACE": "2",
            "DJANGO_SETTINGS_MODULE": "docora.settings",
            **({"DATABASE_URL": database_url} if database_url else {}),
            **settings,
        }
        self._helper: subprocess.Popen[str] | None = None
        with self._log.open("w") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "up"],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the benchmark alone, which then stops this
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> Self:
        deadline = time.monotonic() + _START_PATIENCE
        while _READY not in self._log.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the service does not start:\n{self._log.read_text()}")
            time.sleep(0.05)
        return self

    def inside(self, function: str, *arguments: object) -> Any:
        """Call a function of benchmarks.path.inside in the helper."""
        helper = self._helper = self._helper or self._start_helper()
        if helper.stdin is None or helper.stdout is None:
            raise RuntimeError("no pipes")
        helper.stdin.write(json.dumps([function, *arguments]) + "\n")
        helper.stdin.flush()
        answer = helper.stdout.readline()
        if not answer:
            raise RuntimeError(f"{function} failed inside the service's environment")
        return json.loads(answer)

    def _start_helper(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.path.inside"],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def call(self, method: str, path: str, bearer: str, body: dict[str, Any] | None = None) -> Any:
        """One call of the HTTP API."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/api{path}",
            method=method,
            data=json.dumps(body).encode() if body else None,
            headers={"Authorization": f"Bearer {bearer}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310  a URL of our own
                return json.loads(response.read() or b"{}")
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path} answered {error.code}: {error.read().decode()}") from None

    def stop(self) -> None:
        if self._helper:
            self._helper.terminate()
            self._helper.wait(_STOP_PATIENCE)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_PATIENCE)
        except subprocess.TimeoutExpired:
            # Linux ends the children with it.
            self._process.kill()
            self._process.wait()
