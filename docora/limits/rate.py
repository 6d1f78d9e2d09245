"""So many requests in a minute, or in an hour: token buckets in Redis, shared by all web processes on all hosts.

A bucket holds the allowance of its whole period, so a client may spend it in one burst. Without Redis nobody is
refused: requests go on as if there were no limits.
"""

import hashlib
import ipaddress
import logging
import math
import time
from dataclasses import dataclass
from functools import cache

import redis
from django.conf import settings

from repositories.base import connections
from repositories.errors import RateLimited, TooManyNewWatches
from repositories.models import App, Watch

log = logging.getLogger("docora.limits")

_TIMEOUT = 0.5
_PAUSE_AFTER_FAILURE = 5.0
_asked_again_at = 0.0

# In Lua: what is left in a bucket once `amount` is taken from it, and the seconds to wait where there is not enough.
# `amount` 0 only looks. The key holds what was left and when, by the server's clock, and expires once it is full again.
SPEND = """
local function spend(key, capacity, period, amount)
  capacity = tonumber(capacity)
  period = tonumber(period)
  if capacity == 0 then return 0, 0 end
  local clock = redis.call('TIME')
  local now = clock[1] + clock[2] / 1000000
  local bucket = redis.call('HMGET', key, 'left', 'at')
  local left = tonumber(bucket[1]) or capacity
  left = math.min(capacity, left + (now - (tonumber(bucket[2]) or now)) * capacity / period)
  local wait = 0
  if left >= 1 then left = left - amount else wait = (1 - left) * period / capacity end
  if amount == 0 then return left, wait end
  redis.call('HSET', key, 'left', tostring(left), 'at', tostring(now))
  redis.call('EXPIRE', key, period + 1)
  return left, wait
end
"""
_SPEND_ONE = f"""{SPEND}
local left, wait = spend(KEYS[1], ARGV[1], ARGV[2], 1)
return {{tostring(left), tostring(wait)}}
"""
_LOOK_AT_TWO = f"""{SPEND}
local _, first = spend(KEYS[1], ARGV[1], 60, 0)
local _, second = spend(KEYS[2], ARGV[2], 60, 0)
return {{tostring(first), tostring(second)}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What is left of a limit after a request has been counted."""

    name: str
    quota: int
    window: int
    left: float

    @property
    def seconds_to_full(self) -> int:
        return math.ceil((self.quota - self.left) * self.window / self.quota)


# Collects the allowances that one request has spent of, for the headers of its answer.
Spent = list[Allowance]


def spend_for_app(app: App, *, spent: Spent | None = None) -> None:
    _spend(f"app:{app.pk}", settings.APP_RATE, spent=spent)


def spend_for_address(address: str, *, spent: Spent | None = None) -> None:
    _spend(_of_address(address), settings.ADDRESS_RATE, spent=spent)


def spend_for_sign_in(address: str, username: str) -> None:
    """By name too, so that many addresses cannot guess the password of one user.

    Only a hash of the name is stored: people type passwords into the wrong field.
    """
    _spend(f"sign-in:address:{_neighbourhood(address)}", settings.LOGIN_RATE)
    _spend(f"sign-in:name:{hashlib.sha256(username.encode(errors='replace')).hexdigest()}", settings.LOGIN_RATE)


def spend_for_new_watch(app: App, *, spent: Spent | None = None) -> None:
    """Each new watch, and each dry run, may make a worker clone a repository."""
    quota = settings.NEW_WATCHES_PER_HOUR
    _spend(f"new-watch:{app.pk}", quota, period=3600, error=TooManyNewWatches, spent=spent)


def buckets_of_hook(address: str, hook_id: str) -> dict[str, int]:
    """What a hook is counted against: each key with its allowance for a minute. The address counts all that it sends,
    the hook only what has proven itself: others must not be able to use its allowance up."""
    return {_key(_of_address(address)): settings.ADDRESS_RATE, _key(f"hook:{hook_id}"): settings.HOOK_RATE}


def check_hook(address: str, hook_id: str, *, through: redis.Redis) -> float:
    """Raises when the address has sent too many hooks. Returns the seconds for which the hook's own allowance is used
    up; tell them only after the proof has held. Counts nothing."""
    buckets = buckets_of_hook(address, hook_id)
    wait_of_address, wait_of_hook = map(float, through.eval(_LOOK_AT_TWO, 2, *buckets, *buckets.values()))
    if wait_of_address:
        raise RateLimited(wait_of_address)
    return wait_of_hook


def spend_for_refresh(watch: Watch) -> None:
    _spend(f"refresh:{watch.pk}", settings.REFRESH_RATE)


@cache
def connection() -> redis.Redis:
    return connections.connect_impatiently(timeout=_TIMEOUT)


def _spend(
    name: str,
    quota: int,
    *,
    period: int = 60,
    error: type[RateLimited] = RateLimited,
    spent: Spent | None = None,
) -> None:
    """Raises the error when the period's allowance is used up; 0 means that there is no limit."""
    global _asked_again_at
    if not quota or time.monotonic() < _asked_again_at:
        return
    try:
        left, wait = map(float, connection().eval(_SPEND_ONE, 1, _key(name), quota, period))
    except redis.RedisError as failure:
        _asked_again_at = time.monotonic() + _PAUSE_AFTER_FAILURE
        log.warning("Requests are not limited for %g s: %s", _PAUSE_AFTER_FAILURE, failure)
        return
    if spent is not None:
        spent.append(Allowance(name=name.partition(":")[0], quota=quota, window=period, left=left))
    if wait:
        raise error(wait)


def _key(name: str) -> str:
    return f"docora:rate:{name}"


def _of_address(address: str) -> str:
    return f"address:{_neighbourhood(address)}"


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
