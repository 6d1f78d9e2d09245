"""What Redis is asked for a hook that has arrived, all of it in one question: is it within its limits; if so, it is
counted and written down, and its hints are given. A host may send hundreds in a second, and each question costs both
sides more than what it asks for.
"""

from collections.abc import Callable, Sequence
from functools import cache

from redis.commands.core import Script

from docora.limits import rate
from repositories import hints, hooks
from repositories.base import queue
from repositories.errors import RateLimited
from repositories.hooks import OpenHook, Watched

# KEYS: the bucket of the address, that of the hook, the hook's log, then those of the hints.
# ARGV: the allowances of both buckets, whether the proof holds, what is written down, then the words of the hints.
_TAKE_IN = f"""
{rate.SPEND}
{hooks.NOTE}
{hints.GIVE}
local _, wait = spend(KEYS[1], ARGV[1], 60, 1)
if wait == 0 and ARGV[3] == '1' then _, wait = spend(KEYS[2], ARGV[2], 60, 1) end
if wait > 0 then return {{tostring(wait)}} end
note(KEYS[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
return {{'0', unpack(give_hints({{unpack(KEYS, 4)}}, {{unpack(ARGV, 8)}}))}}
"""


@cache
def _take_in() -> Script:
    """Sent once; then Redis knows it by its hash."""
    return queue.impatient_connection().register_script(_TAKE_IN)


def take_in(
    hook: OpenHook,
    address: str,
    *,
    event: str,
    outcome: str,
    proven: bool = True,
    error: str = "",
    hint_at: Sequence[Watched] = (),
) -> Callable[[], None]:
    """Returns what is left to be done after the answer.

    Raises RateLimited, and redis.RedisError, quickly, if Redis does not answer.
    """
    buckets = rate.buckets_of_hook(address, hook.public_id)
    hint_keys, hint_words = hints.script_arguments(hint_at, by_hook=True)
    keys = [*buckets, hooks.log_key(hook.public_id), *hint_keys]
    written_down = (hint_words[0], event.encode(errors="replace"), outcome, error)
    words: list[str | bytes | int] = [*buckets.values(), int(proven), *written_down, *hint_words]
    wait, *found = _take_in()(keys, words, client=queue.impatient_connection())
    if float(wait):
        raise RateLimited(float(wait))
    return lambda: hints.request_looks(hint_at, found)
