"""The state of the lock in Redis: its holder, the waiter whose turn it is, the other waiters, the last fence.

Invariants. The scripts alone uphold them, whatever the clients do:

1. A lock has at most one holder. Only `ACQUIRE` makes one, and only while there is none.
2. Nobody overtakes. A free lock goes to the waiter that has the turn; the turn goes to the oldest one that listens.
3. A free lock with waiters is not forgotten: the turn expires, and the next client that asks passes it on.
4. The fences of one lock strictly grow. They follow the server's clock, so they also grow after a data loss.
5. Each script may be sent twice with the same token. The second time changes nothing and answers the same.
6. Every key expires, so nothing stays behind when clients die.

The four keys of a lock share a hash tag, so that they live in one slot of a cluster:

    docora:repo-lock:{owner/name}         hash    token, since, fence of the holder; lives for the TTL
    docora:repo-lock:{owner/name}:turn    string  token of the waiter that may take the free lock now
    docora:repo-lock:{owner/name}:queue   list    tokens of the waiters, oldest first
    docora:repo-lock:{owner/name}:fence   string  the last fence given
"""

import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import redis
from redis.client import PubSub
from redis.commands.core import Script

from repositories.base import connections
from repositories.errors import Holder

PREFIX = "docora:repo-lock:"
TURN_SECONDS = 1.0
FENCE_SECONDS = 86_400
YOUR_TURN = b"your turn"

_COMMON = """
local lock, turn, queue, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local me = ARGV[1]

local function tell(token, what)
  return redis.call('PUBLISH', lock .. ':wake:' .. string.match(token, '^%S+'), what) > 0
end

local function call_next()
  while true do
    local token = redis.call('LPOP', queue)
    if not token then return false end
    if tell(token, 'your turn') then  -- else it is dead, for nobody listens: skip it
      redis.call('SET', turn, token, 'PX', TURN_MS)
      local after = redis.call('LINDEX', queue, 0)
      if after then tell(after, 'stand by') end  -- to look again when the turn runs out: it may be frozen
      return token
    end
  end
end
""".replace("TURN_MS", str(int(TURN_SECONDS * 1000)))

_ACQUIRE = (
    _COMMON
    + """
local ttl, wait_ms = ARGV[2], tonumber(ARGV[3])
local holder = redis.call('HMGET', lock, 'token', 'since', 'fence')

if holder[1] == me then  -- the answer to the first time was lost
  redis.call('PEXPIRE', lock, ttl)
  return {1, holder[3]}
end

local function busy(ahead, since, key)
  if wait_ms == 0 then return {0, ahead, since, 0} end
  local place = redis.call('LPOS', queue, me)
  if not place then
    place = redis.call('RPUSH', queue, me) - 1
    redis.call('PEXPIRE', queue, math.max(redis.call('PTTL', queue), wait_ms + 10000))
  end
  if place > 0 then return {0, ahead, since, -1} end  -- only the first need look when the key expires
  return {0, ahead, since, redis.call('PTTL', key)}
end

if holder[1] then return busy(holder[1], holder[2], lock) end
local ahead = redis.call('GET', turn) or call_next()
if ahead and ahead ~= me then return busy(ahead, '', turn) end

local now = redis.call('TIME')
local number = now[1] * 1000 + math.floor(now[2] / 1000)
number = string.format('%.0f', math.max((tonumber(redis.call('GET', fence)) or 0) + 1, number))
redis.call('SET', fence, number, 'EX', FENCE_SECONDS)
local since = now[1] .. '.' .. string.format('%06d', now[2])
redis.call('HSET', lock, 'token', me, 'since', since, 'fence', number)
redis.call('PEXPIRE', lock, ttl)
if ahead then redis.call('DEL', turn) end
return {1, number}
""".replace("FENCE_SECONDS", str(FENCE_SECONDS))
)

_RENEW = """
if redis.call('HGET', KEYS[1], 'token') ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""

_LEAVE = (
    _COMMON
    + """
redis.call('LREM', queue, 0, me)
local ahead = redis.call('GET', turn)
if ahead == me then
  redis.call('DEL', turn)
  ahead = false
end
local holder = redis.call('HGET', lock, 'token')
if holder == me then redis.call('DEL', lock) end
if (holder == me or not holder) and not ahead then call_next() end
return holder == me and 1 or 0
"""
)


def new_token(job_id: str) -> str:
    """A random word, then host, process and job: so holder, turn and waiters can be named from the token alone."""
    return f"{secrets.token_hex(8)} {socket.gethostname()} {os.getpid()} {job_id}"


def who_is(token: str, since: float) -> Holder:
    _, host, pid, job_id = token.split(" ", 3)
    return Holder(job_id=job_id, host=host, pid=int(pid), since=since)


class Names:
    """The keys of one lock."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.lock = f"{PREFIX}{{{key}}}"
        self.queue = f"{self.lock}:queue"
        self.all = [self.lock, f"{self.lock}:turn", self.queue, f"{self.lock}:fence"]

    def channel(self, token: str) -> str:
        return f"{self.lock}:wake:{token.split(' ', 1)[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Not now: which job is ahead, and after how many seconds that may have changed by itself, if known."""

    ahead: Holder
    expires_in: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LockStatus:
    """One held lock, as `manage.py repolocks` shows it."""

    key: str
    token: str = field(repr=False)
    holder: Holder
    fence: int
    age: float
    expires_in: float
    waiters: tuple[str, ...]


class _Flag(threading.Event):
    """An event without a lock: one thread has it for itself."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            time.sleep(timeout or 0)
        return self._is_set


class _Line(PubSub):
    """A subscription that a job's time-out may interrupt anywhere.

    In redis-py's own it may come when the event has just taken its lock. Nobody would give that back, and whoever
    closes the subscription, or lets go of it, would wait for ever.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._flag = _Flag()
        super().__init__(*args, **kwargs)

    @property
    def subscribed_event(self) -> threading.Event:
        return self._flag

    @subscribed_event.setter
    def subscribed_event(self, _: threading.Event) -> None:
        """What redis-py would have."""


class LockServer:
    """The lock's own client. It retries nothing: only its caller knows what a lost answer means."""

    def __init__(self, *, timeout: float) -> None:
        self._client = connections.connect_impatiently(timeout=timeout)
        self._acquire = self._client.register_script(_ACQUIRE)
        self._renew = self._client.register_script(_RENEW)
        self._leave = self._client.register_script(_LEAVE)

    def acquire(self, names: Names, token: str, *, ttl: float, wait: float) -> Granted | Busy:
        """Take the lock, or queue for it if `wait` is more than 0."""
        answer = self._run(self._acquire, names, token, _ms(ttl), _ms(wait))
        if answer[0]:
            return Granted(fence=int(answer[1]))
        _, ahead, since, expires_in = answer
        holder = who_is(ahead.decode(), float(since) if since else time.time())
        return Busy(ahead=holder, expires_in=expires_in / 1000 if expires_in >= 0 else None)

    def renew(self, names: Names, token: str, *, ttl: float) -> bool:
        return bool(self._run(self._renew, names, token, _ms(ttl)))

    def leave(self, names: Names, token: str) -> bool:
        """Give up the lock, the turn or the place in the queue. True if this was the holder."""
        return bool(self._run(self._leave, names, token))

    def _run(self, script: Script, names: Names, *args: str | int) -> Any:
        try:
            return script(keys=names.all, args=args)
        except redis.RedisError:
            raise
        except BaseException:
            # A job's time-out between command and answer: the next command on this connection would get the
            # answer to this one. Close every connection that may still receive it.
            self.close()
            raise

    def subscribe(self, names: Names, token: str) -> PubSub:
        """Listen on the token's own channel, confirmed by the server. The caller closes it."""
        pubsub = _Line(self._client.connection_pool)
        try:
            pubsub.subscribe(names.channel(token))
            if pubsub.get_message(timeout=2) is None:
                raise redis.TimeoutError("the subscription was not confirmed")
        except BaseException:
            pubsub.close()
            raise
        return pubsub

    def status(self) -> list[LockStatus]:
        found = (self._look_at(key.decode()) for key in self._client.scan_iter(match=f"{PREFIX}{{*}}", count=1000))
        return sorted((status for status in found if status), key=lambda status: status.key)

    def _look_at(self, lock: str) -> LockStatus | None:
        names = Names(lock[len(PREFIX) + 1 : -1])
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hgetall(names.lock)
            pipe.pttl(names.lock)
            pipe.lrange(names.queue, 0, -1)
            pipe.time()
            fields, expires_ms, queue, (seconds, micros) = pipe.execute()
        if not fields:
            return None
        token, since = fields[b"token"].decode(), float(fields[b"since"])
        return LockStatus(
            key=names.key,
            token=token,
            holder=who_is(token, since),
            fence=int(fields[b"fence"]),
            age=max(0.0, seconds + micros / 1e6 - since),
            expires_in=max(0, expires_ms) / 1000,
            waiters=self._listening(names, [waiter.decode() for waiter in queue]),
        )

    def _listening(self, names: Names, tokens: list[str]) -> tuple[str, ...]:
        """The jobs of the living waiters. A dead one stays in the queue until its turn."""
        if not tokens:
            return ()
        counts = self._client.pubsub_numsub(*(names.channel(token) for token in tokens))
        return tuple(who_is(token, 0).job_id for token, (_, count) in zip(tokens, counts, strict=True) if count)

    def close(self) -> None:
        """Close idle connections. Another thread may be reading from one that is in use."""
        self._client.connection_pool.disconnect(inuse_connections=False)


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
