"""So many requests a minute: token buckets in Redis, shared by all web processes on all hosts.

A bucket holds one minute's allowance, so a client may spend it in one burst. Without Redis nobody is
refused, and nobody waits for it: the limit protects the service from its clients, not the clients from it.
"""

import ipaddress
import logging
import time
from functools import cache

import redis
from django.conf import settings

from repositories.base import connections
from repositories.errors import RateLimited
from repositories.models import App

log = logging.getLogger("docora.rate_limit")

_TIMEOUT = 0.5
_PAUSE_AFTER_FAILURE = 5.0
_asked_again_at = 0.0

# KEYS[1] holds what is left and when that was so, by the server's clock; it expires once it is full again.
_SPEND = """
local capacity = tonumber(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local bucket = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = tonumber(bucket[1]) or capacity
left = math.min(capacity, left + (now - (tonumber(bucket[2]) or now)) * capacity / 60)
local wait = 0
if left >= 1 then left = left - 1 else wait = (1 - left) * 60 / capacity end
redis.call('HSET', KEYS[1], 'left', tostring(left), 'at', tostring(now))
redis.call('EXPIRE', KEYS[1], 61)
return tostring(wait)
"""


def spend_for_app(app: App) -> None:
    _spend(f"app:{app.pk}", settings.APP_RATE)


def spend_for_address(address: str) -> None:
    _spend(f"address:{_neighbourhood(address)}", settings.ADDRESS_RATE)


@cache
def connection() -> redis.Redis:
    return connections.connect_impatiently(timeout=_TIMEOUT)


def _spend(name: str, per_minute: int) -> None:
    """Raises RateLimited when the minute's allowance is used up; 0 means that there is no limit."""
    global _asked_again_at
    if not per_minute or time.monotonic() < _asked_again_at:
        return
    try:
        wait = float(connection().eval(_SPEND, 1, f"docora:rate:{name}", per_minute))
    except redis.RedisError as error:
        _asked_again_at = time.monotonic() + _PAUSE_AFTER_FAILURE
        log.warning("Requests are not limited for %g s: %s", _PAUSE_AFTER_FAILURE, error)
        return
    if wait:
        raise RateLimited(wait)


def _neighbourhood(address: str) -> str:
    """An IPv6 client has a /64 to itself, and would have a bucket for each of its addresses."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return address
