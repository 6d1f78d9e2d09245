"""Gunicorn's log in the form of all others, and one line for each request with the id that its answer carries."""

from typing import Any

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from gunicorn.glogging import Logger

from docora.middleware.request_id import HEADER


class GunicornLog(Logger):  # type: ignore[misc]  # gunicorn ships no types
    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for log in (self.error_log, self.access_log):
            log.handlers.clear()
            log.propagate = True


class AccessLog(AbstractAccessLogger):
    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        facts = {
            "address": request.remote or "",
            "seconds": time,
            "bytes": response.body_length,
            "agent": request.headers.get("User-Agent", ""),
            "request_id": response.headers.get(HEADER, ""),
        }
        self.logger.info("%s %s %s", request.method, request.raw_path, response.status, extra=facts)
