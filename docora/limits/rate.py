"""So many requests in a minute, or in an hour: token buckets in Redis, shared by all web processes on all hosts.

A bucket holds the allowance of its whole period, so a client may spend it in one burst. Without Redis nobody is
refused: requests go on as if there were no limits.
"""

import hashlib
import ipaddress
import logging
import time
from functools import cache

import redis
from django.conf import settings

from repositories.base import connections
from repositories.errors import RateLimited, TooManyNewWatches
from repositories.models import App

log = logging.getLogger("docora.limits")

_TIMEOUT = 0.5
_PAUSE_AFTER_FAILURE = 5.0
_asked_again_at = 0.0

# KEYS[1] holds what is left and when that was so, by the server's clock; it expires once it is full again.
_SPEND = """
local capacity = tonumber(ARGV[1])
local period = tonumber(ARGV[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local bucket = redis.call('HMGET', KEYS[1], 'left', 'at')
local left = tonumber(bucket[1]) or capacity
left = math.min(capacity, left + (now - (tonumber(bucket[2]) or now)) * capacity / period)
local wait = 0
if left >= 1 then left = left - 1 else wait = (1 - left) * period / capacity end
redis.call('HSET', KEYS[1], 'left', tostring(left), 'at', tostring(now))
redis.call('EXPIRE', KEYS[1], period + 1)
return tostring(wait)
"""


def spend_for_app(app: App) -> None:
    _spend(f"app:{app.pk}", settings.APP_RATE)


def spend_for_address(address: str) -> None:
    _spend(f"address:{_neighbourhood(address)}", settings.ADDRESS_RATE)


def spend_for_sign_in(address: str, username: str) -> None:
    """By name too, so that many addresses cannot guess the password of one user.

    Only a hash of the name is stored: people type passwords into the wrong field.
    """
    _spend(f"sign-in:address:{_neighbourhood(address)}", settings.LOGIN_RATE)
    _spend(f"sign-in:name:{hashlib.sha256(username.encode(errors='replace')).hexdigest()}", settings.LOGIN_RATE)


def spend_for_new_watch(app: App) -> None:
    """Each new watch, and each dry run, may make a worker clone a repository."""
    _spend(f"new-watch:{app.pk}", settings.NEW_WATCHES_PER_HOUR, period=3600, error=TooManyNewWatches)


@cache
def connection() -> redis.Redis:
    return connections.connect_impatiently(timeout=_TIMEOUT)


def _spend(name: str, allowance: int, *, period: int = 60, error: type[RateLimited] = RateLimited) -> None:
    """Raises the error when the period's allowance is used up; 0 means that there is no limit."""
    global _asked_again_at
    if not allowance or time.monotonic() < _asked_again_at:
        return
    try:
        wait = float(connection().eval(_SPEND, 1, f"docora:rate:{name}", allowance, period))
    except redis.RedisError as failure:
        _asked_again_at = time.monotonic() + _PAUSE_AFTER_FAILURE
        log.warning("Requests are not limited for %g s: %s", _PAUSE_AFTER_FAILURE, failure)
        return
    if wait:
        raise error(wait)


def _neighbourhood(address: str) -> str:
    """An IPv6 client has a whole /64, and would otherwise have a bucket for each address in it."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped or ipaddress.ip_network((parsed, 64), strict=False))
    return address
