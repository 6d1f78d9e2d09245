"""A whole running Docora for the journeys: `manage.py up` in a data directory of its own.

    with Service(SCAN_INTERVAL="1") as service:
        requests go to service.url; service.manage("tick") runs a command beside it

It runs on the database of TEST_DATABASE, with one process of each kind unless told otherwise.
"""

import atexit
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Self

import psutil
import redis

from docora.processes.mark import MARK
from tests.support import postgres, warm_python
from tests.support.warm_python import Process

ROOT = Path(__file__).parent.parent.parent
PATIENCE = 120.0
READY = "Ctrl-C stops all of it."


def wait_until(
    condition: Callable[[], object], what: str = "it happens", patience: float = PATIENCE, *, pause: float = 0.01
) -> None:
    """Asks less and less often: an answer may cost a request, or a git, and takes the CPU from what it waits for."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {patience:g} s"
        time.sleep(pause)
        pause = max(pause, min(pause * 1.2, 0.06))


def wait_for_disk(connection: redis.Redis) -> None:
    """Valkey answers before a write is on disk: it flushes every second, and later while the disk is busy."""
    connection.incr("tests:written")
    assert connection.execute_command("WAITAOF", 1, 0, 60_000)[0] == 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):
        return {}


class Service:
    """Starts and stops `manage.py up`; its data stays from one start to the next, until `close`."""

    def __init__(self, **environment: str) -> None:
        # Not in pytest's folder: the path of the Valkey socket in it would be too long.
        self.data = Path(tempfile.mkdtemp(prefix="docora-service-"))
        self.port = free_port()
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.data),
            "DJANGO_SETTINGS_MODULE": "tests.support.service_settings",
            "PORT": str(self.port),
            "DOCORA_DATA_DIR": str(self.data),
            "WEB_CONCURRENCY": "1",
            "SCAN_CONCURRENCY": "1",
            "DELIVERY_CONCURRENCY": "1",
            **environment,
        }
        self._database_url = ""
        if os.environ.get("TEST_DATABASE") == "postgresql" and "DATABASE_URL" not in environment:
            self._database_url = postgres.create_database(os.environ["DATABASE_URL"], f"up_{secrets.token_hex(6)}")
            self.environment["DATABASE_URL"] = self._database_url
        self.process: Process | None = None
        self.output_path = self.data / "terminal.txt"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        """All that it has printed, over all of its starts."""
        return self.output_path.read_text() if self.output_path.exists() else ""

    @property
    def redis_url(self) -> str:
        return self.environment.get("REDIS_URL", f"unix://{self.data / 'valkey' / 'valkey.sock'}")

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.redis_url, socket_timeout=5)

    @property
    def first_password(self) -> str:
        return (self.data / "first-password").read_text().strip()

    def launch(self, *options: str) -> Process:
        """Start it without waiting for anything."""
        with self.output_path.open("a") as output, Path(os.devnull).open() as nothing:
            return self._launch(*options, stdin=nothing, stdout=output, stderr=output)

    def launch_on(self, terminal: int) -> Process:
        """The same on a terminal."""
        return self._launch(stdin=terminal, stdout=terminal, stderr=terminal)

    def _launch(self, *options: str, **streams: IO[str] | int) -> Process:
        self.process = warm_python.start("up", *options, environment=self.environment, own_mark=MARK, **streams)
        return self.process

    def launch_as_it_is(self) -> Process:
        """The same in a new Python, as an operator starts it."""
        with self.output_path.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "manage.py"), "up"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self.process

    def start(self) -> Self:
        """Start it and return when it is ready; the first time, on a database that is migrated already."""
        self.prepare()
        return self._wait_until_ready(self.launch)

    def prepare(self) -> Self:
        """Copy keys and a migrated database into its place, unless it has its own."""
        if self._is_untouched():
            migrated().copy_to(self)
        return self

    def _is_untouched(self) -> bool:
        """Whether it has neither keys nor a database of its own yet."""
        given = {"ENCRYPTION_KEYS", "DJANGO_SECRET_KEY"} & self.environment.keys()
        own = self.environment.get("DATABASE_URL", "") == self._database_url
        return own and not given and not (self.data / "keys").exists() and not (self.data / "docora.sqlite3").exists()

    def start_as_it_is(self) -> Self:
        """The same in a new Python, and with nothing prepared: the first time, this begins with the migrations."""
        return self._wait_until_ready(self.launch_as_it_is)

    def _wait_until_ready(self, launch: Callable[[], Process]) -> Self:
        before = self.output.count(READY)
        process = launch()

        def is_ready() -> bool:
            assert process.poll() is None, f"it ended instead of starting:\n{self.output}"
            return self.output.count(READY) > before

        wait_until(is_ready, "the service starts")
        return self

    def manage(self, *words: str, check: bool = True, typed: str = "") -> "subprocess.CompletedProcess[str]":
        """Run a management command in the service's environment."""
        result = warm_python.run(*words, environment=self.environment, typed=typed, timeout=PATIENCE)
        assert not check or result.returncode == 0, f"manage.py {' '.join(words)}:\n{result.stdout}{result.stderr}"
        return result

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop it as Ctrl-C does; returns its exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout=PATIENCE)

    def processes(self) -> list[psutil.Process]:
        """Every process with this data directory in its environment: horses and their children too."""
        ours = str(self.data)
        return [process for process in psutil.process_iter() if environment(process).get("DOCORA_DATA_DIR") == ours]

    def close(self) -> None:
        """Stop it if it runs, and remove its data; nothing outlives a test that failed."""
        if self.process is not None:
            self.stop()
        for process in self.processes():
            process.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Migrated:
    """A data directory and a database as `manage.py migrate` makes them; a copy takes a hundredth of its time."""

    data: Path
    database_url: str

    def copy_to(self, service: Service) -> None:
        shutil.copytree(self.data / "keys", service.data / "keys")
        if self.database_url:
            postgres.copy_database(self.database_url, service.environment["DATABASE_URL"])
        else:
            self.copy_sqlite(service.data / "docora.sqlite3")

    def copy_sqlite(self, path: Path) -> None:
        shutil.copy2(self.data / "docora.sqlite3", path)


@cache
def migrated() -> Migrated:
    """Made once for all processes of pytest-xdist, by the first that asks; removed with the folder that they share."""
    shared = Path(os.environ.get("DOCORA_TEST_SHARED") or _folder_of_this_process())
    data, note = shared / "migrated", shared / "migrated.url"
    with (shared / "migrated.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists():
            service = Service()
            service.manage("migrate", "-v0")
            shutil.move(service.data, data)
            note.write_text(service.environment.get("DATABASE_URL", ""))
    return Migrated(data, note.read_text())


def _folder_of_this_process() -> str:
    folder = tempfile.mkdtemp(prefix="docora-shared-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
