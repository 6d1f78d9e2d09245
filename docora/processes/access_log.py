"""Gunicorn's log in the form of all others, and one line for each request with the id that its answer carries."""

from datetime import timedelta
from typing import Any

from gunicorn.glogging import Logger

from docora.request_id import HEADER


class GunicornLog(Logger):  # type: ignore[misc]  # gunicorn ships no types
    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        for log in (self.error_log, self.access_log):
            log.handlers.clear()
            log.propagate = True

    def access(self, resp: Any, req: Any, environ: dict[str, Any], request_time: timedelta) -> None:
        if not self.access_log_enabled:
            return
        status = str(resp.status).partition(" ")[0]
        headers = {name.lower(): value for name, value in resp.headers}
        facts = {
            "address": environ.get("REMOTE_ADDR") or "",
            "seconds": request_time.total_seconds(),
            "bytes": getattr(resp, "sent", None),
            "agent": environ.get("HTTP_USER_AGENT", ""),
            "request_id": headers.get(HEADER.lower(), ""),
        }
        self.access_log.info("%s %s %s", environ["REQUEST_METHOD"], environ["RAW_URI"], status, extra=facts)
