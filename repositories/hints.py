"""Hints: somebody says that a repository may have changed. Nothing is believed but that a look is worth it now.

The hints that wait for a repository are one key in Redis, with the times of the first and of the newest. A look reads
the key before it asks the remote, and deletes it afterwards if it is still the same. So hints that come together are
answered by one look, and one that comes while a look is running causes another: that look may have seen the older
commit. Two looks that hints ask for begin at least INTERVAL apart, however often a repository is pushed to.

Nothing here is in the database: a git host that waits for the answer to its hook must not wait for a row that a first
sync has locked. If Redis loses a hint, the next planned look finds the change.
"""

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from redis.client import Pipeline

from repositories import messages
from repositories.base import queue
from repositories.models import Repository

# Seconds between the beginnings of two looks at one repository that hints ask for.
INTERVAL = 1.0
_KEPT = 3600
# A repository whose look was too long for the urgent queue uses the ordinary one for a while.
_LONG_FOR = 600
# Hooks that have arrived within this time are expected to go on arriving.
_HOOKED_FOR = 7 * 24 * 3600

_WAITING = "docora:hint:{}"
_LOOKED = "docora:hint-look:{}"
_LONG = "docora:hint-long:{}"
_HOOKED = "docora:hooked:{}"

# The value is `first-newest-random`: two hints of the same moment are two. KEYS: the hint, whether looks take long,
# whether hooks arrive, the urgent queue. A job that is in line there after the hint was added will read the hint.
_ADD = """
local waiting = redis.call('GET', KEYS[1])
local first = waiting and string.match(waiting, '^[^-]+') or ARGV[1]
redis.call('SET', KEYS[1], first .. '-' .. ARGV[1] .. '-' .. ARGV[2], 'EX', ARGV[3])
if ARGV[4] ~= '0' then redis.call('SET', KEYS[3], 1, 'EX', ARGV[4]) end
return {redis.call('EXISTS', KEYS[2]), redis.call('LPOS', KEYS[4], ARGV[5]) and 1 or 0}
"""
# What came during the look stays. Its first is taken for its newest: they are at most a look apart.
_ANSWER = """
local waiting = redis.call('GET', KEYS[1])
if not waiting or waiting == ARGV[1] then redis.call('DEL', KEYS[1]) return 1 end
local newest, random = string.match(waiting, '^[^-]+-([^-]+)-(.+)$')
if newest then redis.call('SET', KEYS[1], newest .. '-' .. newest .. '-' .. random, 'KEEPTTL') end
return 0
"""


@dataclass(frozen=True, slots=True)
class Hint:
    """All hints that no look has answered yet; `at` is when the first of them came."""

    at: datetime
    _value: bytes


def give(repositories: Sequence[Repository], *, by_hook: bool, along_with: Pipeline | None = None) -> None:
    """Ask for a look at each before all that waits. Raises redis.RedisError, quickly, if it cannot be asked for.

    The commands that are in the pipeline `along_with` go to Redis in the same question.
    """
    with queue.without_waiting() as connection:
        pipeline = connection.pipeline(transaction=False) if along_with is None else along_with
        others = len(pipeline)
        for repository in repositories:
            keys = [name.format(repository.pk) for name in (_WAITING, _LONG, _HOOKED)]
            line, job = queue.named(queue.URGENT).key, messages.urgent_look_job(repository.pk)
            hooked_for = _HOOKED_FOR if by_hook else 0
            pipeline.eval(_ADD, 4, *keys, line, f"{time.time():.6f}", secrets.token_hex(4), _KEPT, hooked_for, job)
        for repository, (takes_long, is_in_line) in zip(repositories, pipeline.execute()[others:], strict=True):
            if is_in_line:
                continue
            if takes_long or not repository.sequence:
                messages.look_soon(repository.pk)
            else:
                messages.look_now(repository.pk)


def newest(repository_id: int) -> Hint | None:
    value = cast(bytes | None, queue.connection().get(_WAITING.format(repository_id)))
    if value is None:
        return None
    return Hint(datetime.fromtimestamp(float(value.split(b"-")[0]), UTC), value)


def answer(repository_id: int, hint: Hint) -> bool:
    """A look that began after the hint is over; False if there is a newer hint by now."""
    return bool(queue.connection().eval(_ANSWER, 1, _WAITING.format(repository_id), hint._value))


def claim_look(repository_id: int) -> float:
    """0 if a look may begin now; otherwise the seconds until it may."""
    key = _LOOKED.format(repository_id)
    if queue.connection().set(key, 1, nx=True, px=max(1, round(INTERVAL * 1000))):
        return 0.0
    return max(0.001, queue.connection().pttl(key) / 1000)


def note_long(repository_id: int) -> None:
    queue.connection().set(_LONG.format(repository_id), 1, ex=_LONG_FOR)


def note_missed(repository_id: int) -> None:
    """A planned look has found a change that no hint announced: hooks of this repository do not arrive any more."""
    queue.connection().delete(_HOOKED.format(repository_id))


def hooked(repository_ids: Iterable[int]) -> set[int]:
    """Those whose hooks arrive."""
    ids = list(repository_ids)
    found = queue.connection().mget([_HOOKED.format(key) for key in ids]) if ids else []
    return {key for key, value in zip(ids, found, strict=True) if value}
