"""HTTP ranges (RFC 9110, section 14): one span of bytes, or all of them."""

import re

from repositories.errors import RangeNotSatisfiable
from snapshots.content import Span

_ONE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


def span_of(header: str, size: int) -> Span | None:
    """The span that is asked for; None: the whole file, also for several ranges or none that can be understood."""
    match = _ONE_RANGE.fullmatch(header.strip().lower())
    if not match or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        span = Span(max(0, size - int(last)), size)
    else:
        span = Span(int(first), min(size, int(last) + 1) if last else size)
    if last and first and int(last) < int(first):
        return None
    if span.size <= 0:
        raise RangeNotSatisfiable(size)
    return span
