"""The web server: gunicorn, on a socket that the supervisor has opened.

Where gunicorn is started by hand, `-c python:docora.processes.web` gives it `worker_class`, `pre_request` and
`post_worker_init`.
"""

import contextlib
import gc
import signal
import socket
import time
from types import FrameType
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string
from gunicorn.app.base import BaseApplication
from gunicorn.workers.gthread import ThreadWorker

from docora.processes.access_log import GunicornLog
from repositories.base import burst

worker_class = "docora.processes.web.Worker"

# A client that still sends what nobody reads, such as a body that is too large, is listened to for so long.
_CLOSING_SECONDS = 2.0
# One that sends nothing for so long has sent all.
_SILENCE_SECONDS = 0.5
_PIECE = 64 << 10


def serve(listener: int, *, processes: int, threads: int, stop_grace: float) -> None:
    """Answer requests that come in on this file descriptor, until SIGTERM."""
    _Server(
        bind=f"fd://{listener}",
        workers=processes,
        worker_class=worker_class,
        threads=threads,
        # A path of git may have 4 KB, each byte of it three characters in a URL: as long as gunicorn allows.
        limit_request_line=8190,
        graceful_timeout=round(stop_grace),
        control_socket_disable=True,
        accesslog="-",
        logger_class=GunicornLog,
        pre_request=pre_request,
        post_worker_init=post_worker_init,
    ).run()


class _Server(BaseApplication):  # type: ignore[misc]  # gunicorn ships no types
    def __init__(self, **options: Any) -> None:
        self._options = options
        super().__init__()

    def load_config(self) -> None:
        for name, value in self._options.items():
            self.cfg.set(name, value)

    def load(self) -> Any:
        return import_string(settings.WSGI_APPLICATION)


class Worker(ThreadWorker):  # type: ignore[misc]
    """Waits in a request's own thread until the client has closed its end of a connection.

    Gunicorn waits for that, up to 2 s, in the thread that accepts all others: five clients that did not close theirs
    kept every new request waiting for 4 s.
    """

    def handle(self, conn: Any) -> Any:
        is_kept = super().handle(conn)
        if not is_kept:
            _let_client_close(conn.sock)
        return is_kept


def _let_client_close(connection: socket.socket) -> None:
    """Read and drop what the client still sends: if it were cut off, it might never see its answer."""
    deadline = time.monotonic() + _CLOSING_SECONDS
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(_SILENCE_SECONDS)
        with contextlib.suppress(TimeoutError):
            while time.monotonic() < deadline and connection.recv(_PIECE):
                pass
        # Now gunicorn finds nothing to wait for.
        connection.shutdown(socket.SHUT_RD)


def pre_request(_worker: Any, request: Any) -> None:
    """Close the connection after a hook: a git host sends one on each. The end of one that is kept open is noticed like
    one more request, and costs as much."""
    if request.path.startswith("/hooks/"):
        request.force_close()


def post_worker_init(worker: Any) -> None:
    # What is loaded by now stays: looking through all of it for garbage would halt every request for 0.1 s and more.
    gc.collect()
    gc.freeze()
    burst.prepare(threads=worker.cfg.threads)
    _end_long_polls_at_stop(worker)


def _end_long_polls_at_stop(worker: Any) -> None:
    """A worker that is asked to end lets its requests finish; requests that only wait for changes are answered now."""
    from docora.limits import seats

    def leave(number: int, frame: FrameType | None) -> None:
        seats.end_waiting()
        worker.handle_exit(number, frame)

    signal.signal(signal.SIGTERM, leave)
