"""How log lines look: text on a terminal, one JSON object for each line elsewhere, from every process alike.

Code logs with the standard library (`logging.getLogger("docora.…")`); structlog only gives the lines their form. What
they have in common, such as the job's id, is in repositories/base/log_context.py. Django's, RQ's and gunicorn's lines
take the same way.
"""

import json
import logging
import os
import socket
import sys
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, Processor

from repositories.base.redaction import redact

FORMS = ("auto", "pretty", "json")
_FIRST = ("timestamp", "level", "logger", "event")
_HOST = socket.gethostname()


def configuration(*, form: str, level: str) -> dict[str, Any]:
    """For Django's LOGGING."""
    talkative = level == "DEBUG"
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"rq": {"()": "docora.logs.QuietRq", "talkative": talkative}},
        "formatters": {"docora": {"()": "docora.logs.formatter", "form": form}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "docora", "filters": ["rq"]}},
        "root": {"handlers": ["console"], "level": "WARNING"},
        "loggers": {
            "docora": {"level": level},
            "django": {"level": "INFO"},
            "gunicorn": {"level": "INFO"},
            "rq": {"level": "INFO" if talkative else "WARNING"},
        },
    }


class QuietRq(logging.Filter):
    """RQ tells of every job at the level INFO, whatever level its logger has: here that is DEBUG."""

    def __init__(self, *, talkative: bool) -> None:
        super().__init__()
        self._talkative = talkative

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.partition(".")[0] != "rq" or record.levelno != logging.INFO:
            return True
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return self._talkative


def formatter(*, form: str) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_process,
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            _redact,
            _renderer(form),
        ],
    )


def _add_process(_logger: Any, _method: str, line: EventDict) -> EventDict:
    return {**line, "host": _HOST, "pid": os.getpid()}


def _redact(_logger: Any, _method: str, line: EventDict) -> EventDict:
    """In case code forgot to redact what it logs: hides authorization headers, credentials in URLs, and tokens."""
    return {name: redact(value) if isinstance(value, str) else value for name, value in line.items()}


def _renderer(form: str) -> Processor:
    # Not rich's tracebacks, which show the values of variables: one of them may be a token.
    plain, coloured = (
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        for colors in (False, True)
    )

    def render(logger: Any, method: str, line: EventDict) -> Any:
        # Asked for each line: `manage.py up` begins on a terminal, and its children go on in a file.
        on_terminal = sys.stderr is not None and sys.stderr.isatty()
        if form == "json" or (form == "auto" and not on_terminal):
            return _as_json(line)
        # On a terminal of one's own host that would only be noise.
        line = {name: value for name, value in line.items() if name not in ("host", "pid")}
        return (coloured if on_terminal and not os.environ.get("NO_COLOR") else plain)(logger, method, line)

    return render


def _as_json(line: EventDict) -> str:
    ordered = {name: line[name] for name in _FIRST if name in line} | dict(line)
    try:
        return orjson.dumps(ordered, default=repr).decode()
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return json.dumps(ordered, default=repr)
