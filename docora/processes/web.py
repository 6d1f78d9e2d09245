"""The web server: gunicorn's processes on a socket that the supervisor has opened, aiohttp's event loop in each.

Where gunicorn is started by hand, `-c python:docora.processes.web` gives it `worker_class` and `post_worker_init`.
"""

import gc
import logging
from types import FrameType
from typing import Any

from aiohttp import GunicornWebWorker, web
from aiohttp.http_exceptions import HttpProcessingError
from django.conf import settings
from django.utils.module_loading import import_string
from gunicorn.app.base import BaseApplication

from docora.processes.access_log import AccessLog, GunicornLog
from docora.processes.wsgi_bridge import Bridge
from docora.short_requests import LARGEST

worker_class = "docora.processes.web.Worker"

log = logging.getLogger("docora.web")

# Seconds for the head of a request, and between two requests on one connection.
_HEAD_PATIENCE = 15.0
# A client that still sends what nobody reads, such as a body that is too large, is listened to for so long: if it were
# cut off, it might never see its answer.
_CLOSING_SECONDS = 2.0


def serve(listener: int, *, processes: int, threads: int, stop_grace: float) -> None:
    """Answer requests that come in on this file descriptor, until SIGTERM."""
    _Server(
        bind=f"fd://{listener}",
        workers=processes,
        worker_class=worker_class,
        threads=threads,
        graceful_timeout=round(stop_grace),
        control_socket_disable=True,
        accesslog="-",
        logger_class=GunicornLog,
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


class Worker(GunicornWebWorker):
    """Takes a WSGI application, where aiohttp's own takes one of aiohttp's."""

    def load_wsgi(self) -> None:
        largest = max(LARGEST, settings.MAX_BODY_BYTES, settings.MAX_VERIFY_BODY_BYTES)
        bridge = Bridge(self.app.wsgi(), threads=self.cfg.threads, largest=largest)

        async def make_runner() -> web.AppRunner:
            front = bridge.front()
            front.on_response_prepare.append(_name_server)
            log.addFilter(_is_our_error)
            return web.AppRunner(
                front,
                logger=log,
                access_log_class=AccessLog,
                access_log=self.log.access_log if self.cfg.accesslog else None,
                keepalive_timeout=_HEAD_PATIENCE,
                lingering_time=_CLOSING_SECONDS,
                shutdown_timeout=self.cfg.graceful_timeout,
                # The proof of a hook is over the bytes that were sent, and a short body may unpack into a huge one.
                auto_decompress=False,
            )

        self.wsgi = make_runner

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        """A worker that is asked to end lets its requests finish; requests that only wait for changes are answered
        now."""
        from docora.limits import seats

        seats.end_waiting()
        self.handle_quit(number, frame)  # aiohttp's: it finishes them too, and begins at once


async def _name_server(_request: web.Request, response: web.StreamResponse) -> None:
    """Instead of the names and versions of libraries."""
    response.headers["Server"] = "Docora"


def _is_our_error(record: logging.LogRecord) -> bool:
    """A request that cannot be parsed, or whose client has gone, is a line of the access log, and no error of ours."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError | ConnectionError)


def post_worker_init(_worker: Any) -> None:
    # What is loaded by now stays: looking through all of it for garbage would halt every request for 0.1 s and more.
    gc.collect()
    gc.freeze()
