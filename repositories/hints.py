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
from typing import Protocol, cast

from repositories import messages
from repositories.base import queue

# Seconds between the beginnings of two looks at one repository that hints ask for.
INTERVAL = 1.0
_KEPT = 3600
# A repository whose look was too long for the urgent queue uses the ordinary one for a while.
_LONG_FOR = 600
# A hint that comes so many milliseconds after a job was queued for the ones before it asks for no further job.
_ASKED_FOR = 2000
# Hooks that have arrived within this time are expected to go on arriving.
_HOOKED_FOR = 7 * 24 * 3600

_WAITING = "docora:hint:{}"
_LOOKED = "docora:hint-look:{}"
_LONG = "docora:hint-long:{}"
_HOOKED = "docora:hooked:{}"
_ASKED = "docora:hint-asked:{}"

# In Lua: add a hint for each repository. `keys` are the urgent queue and, for each, the hint, whether looks take long,
# whether hooks arrive, and whether a job was queued for the hint a moment ago. `words` are the time, for how long hooks
# are expected from now on and, for each, a random text and the job of its look. A hint's value is
# `first-newest-random`: two hints of the same moment are two.
# Returns for each whether looks take long, and whether a job that will see this hint is there already: one that is in
# line, or one for an earlier hint that is not answered yet, which looks again because the value has changed.
GIVE = f"""
local function give_hints(keys, words)
  local now, hooked_for, found = words[1], words[2], {{}}
  for n = 1, (#keys - 1) / 4 do
    local hint, long, hooked, asked = unpack(keys, 4 * n - 2, 4 * n + 1)
    local random, job = words[2 * n + 1], words[2 * n + 2]
    local waiting = redis.call('GET', hint)
    local first = waiting and string.match(waiting, '^[^-]+') or now
    redis.call('SET', hint, first .. '-' .. now .. '-' .. random, 'EX', {_KEPT})
    if hooked_for ~= '0' then redis.call('SET', hooked, 1, 'EX', hooked_for) end
    found[#found + 1] = redis.call('EXISTS', long)
    local will_see = (waiting and redis.call('EXISTS', asked) == 1) or redis.call('LPOS', keys[1], job)
    found[#found + 1] = will_see and 1 or 0
  end
  return found
end
"""
# Only while a hint waits. Otherwise the mark would make the next hint believe that a job is queued for it.
_NOTE_ASKED = "if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('SET', KEYS[2], 1, 'PX', ARGV[1]) end"
# A hint that came during the look stays. Its newest time becomes its first: they are at most a look apart.
_ANSWER = """
local waiting = redis.call('GET', KEYS[1])
if not waiting or waiting == ARGV[1] then redis.call('DEL', KEYS[1], KEYS[2]) return 1 end
local newest, random = string.match(waiting, '^[^-]+-([^-]+)-(.+)$')
if newest then redis.call('SET', KEYS[1], newest .. '-' .. newest .. '-' .. random, 'KEEPTTL') end
return 0
"""


@dataclass(frozen=True, slots=True)
class Hint:
    """All hints that no look has answered yet; `at` is when the first of them came."""

    at: datetime
    _value: bytes


class Hinted(Protocol):
    """A repository: its row, or as much of it as is known where the hint comes in."""

    @property
    def pk(self) -> int: ...
    @property
    def sequence(self) -> int: ...


def give(repository: Hinted, *, by_hook: bool = False) -> None:
    """Ask for a look before all that waits. Raises redis.RedisError, quickly, if it cannot be asked for."""
    keys, words = script_arguments([repository], by_hook=by_hook)
    script = f"{GIVE} return give_hints(KEYS, ARGV)"
    with queue.without_waiting():
        request_looks([repository], queue.connection_in_use().eval(script, len(keys), *keys, *words))


def script_arguments(repositories: Sequence[Hinted], *, by_hook: bool) -> tuple[list[str], list[str]]:
    """The `keys` and `words` of GIVE."""
    keys, words = [queue.key_of(queue.URGENT)], [f"{time.time():.6f}", str(_HOOKED_FOR if by_hook else 0)]
    for repository in repositories:
        keys += [name.format(repository.pk) for name in (_WAITING, _LONG, _HOOKED, _ASKED)]
        words += [secrets.token_hex(4), messages.urgent_look_job(repository.pk)]
    return keys, words


def request_looks(repositories: Sequence[Hinted], found: Sequence[int]) -> None:
    """At each for which no job is there that will see the hint; `found` is what GIVE has returned."""
    for repository, takes_long, will_be_seen in zip(repositories, found[::2], found[1::2], strict=True):
        if will_be_seen:
            continue
        if takes_long or not repository.sequence:
            messages.look_soon(repository.pk)
        else:
            messages.look_now(repository.pk)
        # Not before: had the job not been queued, the next hint must try again.
        queue.connection_in_use().eval(_NOTE_ASKED, 2, *_keys(repository.pk), _ASKED_FOR)


def need_no_look(found: Sequence[int]) -> bool:
    """Whether `request_looks` would ask for none."""
    return all(found[1::2])


def newest(repository_id: int) -> Hint | None:
    value = cast(bytes | None, queue.connection().get(_WAITING.format(repository_id)))
    if value is None:
        return None
    return Hint(datetime.fromtimestamp(float(value.split(b"-")[0]), UTC), value)


def answer(repository_id: int, hint: Hint) -> bool:
    """A look that began after the hint is over; False if there is a newer hint by now."""
    return bool(queue.connection().eval(_ANSWER, 2, *_keys(repository_id), hint._value))


def _keys(repository_id: int) -> list[str]:
    return [name.format(repository_id) for name in (_WAITING, _ASKED)]


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
