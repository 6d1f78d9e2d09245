"""The web server: gunicorn, on a socket that the supervisor has opened.

Where gunicorn is started by hand, `-c python:docora.processes.web` gives it `pre_request` and `post_worker_init`.
"""

import gc
import signal
from types import FrameType
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string
from gunicorn.app.base import BaseApplication

from docora.processes.access_log import GunicornLog
from repositories.base import burst


def serve(listener: int, *, processes: int, threads: int, stop_grace: float) -> None:
    """Answer requests that come in on this file descriptor, until SIGTERM."""
    _Server(
        bind=f"fd://{listener}",
        workers=processes,
        worker_class="gthread",
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
