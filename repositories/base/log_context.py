"""What log lines have in common for as long as something is worked on: request, job, app, repository, message.

Bound once, where the work begins; every line that is logged inside has it.
"""

import re
import secrets
from typing import Any

from structlog.contextvars import bind_contextvars, bound_contextvars, clear_contextvars, get_contextvars

__all__ = ["accepted_request_id", "add", "bound", "forget", "new_request_id", "request_id"]

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")

bound = bound_contextvars
"""`with bound(app=…):`"""
add = bind_contextvars
"""Add facts until `forget`, or until the end of a `with bound` of the same name around it."""
forget = clear_contextvars


def request_id() -> str:
    """The id of the request, or tick, that this work goes back to; empty outside of one."""
    return str(get_contextvars().get("request_id", ""))


def new_request_id() -> str:
    return secrets.token_hex(8)


def accepted_request_id(given: Any) -> str:
    """What came from outside, if it is one; it ends up in logs and headers."""
    return given if isinstance(given, str) and _REQUEST_ID.fullmatch(given) else ""
