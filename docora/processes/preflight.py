"""What must be true before anything is started; each failure is a StartError of one line."""

import errno
import fcntl
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import redis
from django.db import DatabaseError, connection

from docora import condition
from docora.processes import leftovers, valkey

OLDEST_GIT = (2, 37)


class StartError(Exception):
    """Docora cannot start; the message is one line that says why and what to do."""


def one_line(error: object) -> str:
    return " ".join(str(error).split())


def check_git() -> str:
    """What it calls itself."""
    needed = ".".join(map(str, OLDEST_GIT))
    if shutil.which("git") is None:
        raise StartError(f"git is not installed, or not on the PATH: Docora needs git {needed} or newer")
    output = subprocess.run(["git", "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S607  from the PATH, as the workers do
    version = re.search(r"(\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < OLDEST_GIT:
        raise StartError(f"{output.strip() or 'this git'} is too old: Docora needs git {needed} or newer")
    return output.strip()


def check_writable(folder: Path, setting: str) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise StartError(f"{setting}: cannot write to {folder}: {error.strerror}") from None


def check_database() -> None:
    # A host that swallows packets would otherwise hold the start for minutes.
    os.environ.setdefault("PGCONNECT_TIMEOUT", "10")
    try:
        connection.ensure_connection()
    except DatabaseError as error:
        raise StartError(f"the database cannot be reached, see DATABASE_URL: {one_line(error)}") from None


def check_restored() -> None:
    try:
        condition.check_restored()
    except condition.Unmet as reason:
        raise StartError(str(reason)) from None


def check_keys() -> None:
    try:
        condition.check_keys()
    except condition.Unmet as reason:
        raise StartError(str(reason)) from None
    finally:
        connection.close()


def check_redis(url: str) -> None:
    try:
        with redis.Redis.from_url(url, socket_connect_timeout=10, socket_timeout=10) as client:
            client.ping()
    except (redis.RedisError, ValueError) as error:
        raise StartError(f"the Redis server cannot be reached, see REDIS_URL: {one_line(error)}") from None


def listen(address: str, port: int) -> socket.socket:
    """A listening socket that the web processes inherit: while they restart, connections wait in it."""
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        reason = (
            "is taken by another program" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        )
        if error.errno == errno.EADDRNOTAVAIL:
            raise StartError(f"DOCORA_BIND: this machine does not have the address {address}") from None
        raise StartError(f"port {port} {reason}: choose another one with PORT=<number>") from None
    return listener


@contextmanager
def only_one(folder: Path, run: str) -> Iterator[str | None]:
    """Hold the data for this process; the kernel frees it when the process ends, in whatever way.

    Kills what an earlier supervisor left because it was killed, and gives its run: the jobs are still to be put back.
    """
    with _locked(folder) as (file, earlier_run):
        os.register_at_fork(after_in_child=file.close)  # a fork that has it open would hold it too
        if earlier_run:
            leftovers.kill(earlier_run, sparing=valkey.scope(earlier_run))
            leftovers.end(valkey.scope(earlier_run), patience=valkey.STOP_PATIENCE)
        _rewrite(file.fileno(), f"{os.getpid()} {run}\n")
        try:
            yield earlier_run or None
        finally:
            _rewrite(file.fileno(), "")


@contextmanager
def keep_stopped(folder: Path) -> Iterator[None]:
    """While this is held, `manage.py up` does not start on the data; fails if it runs."""
    with _locked(folder):
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[tuple[IO[str], str]]:
    """The file of the lock, and the run that an earlier supervisor has written into it and not removed."""
    with (folder / "up.lock").open("a+") as file:
        file.seek(0)
        pid, _, earlier_run = file.read().strip().partition(" ")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(f"Docora is already running on {folder} (process {pid or 'unknown'})") from None
        yield file, earlier_run


def _rewrite(handle: int, text: str) -> None:
    os.ftruncate(handle, 0)
    os.write(handle, text.encode())
