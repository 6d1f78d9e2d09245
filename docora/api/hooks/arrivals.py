"""What Redis is asked for hooks that have arrived, all of it in one question: is each within its limits; if so, it is
counted and written down, and its hints are given. A host may send hundreds in a second, and each question costs both
sides more than what it asks for.
"""

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from redis.exceptions import NoScriptError

from docora.limits import rate
from repositories import hints, hooks, messages
from repositories.base import log_context, queue
from repositories.errors import RateLimited
from repositories.hooks import OpenHook, Watched

log = logging.getLogger("docora.hooks")

ACCEPTED, IGNORED, REFUSED = "accepted", "ignored", "refused"
_TOO_MANY = "Too many requests."

# KEYS: the bucket of the address, that of the hook, the hook's log, then those of the hints.
# ARGV: the allowances of both buckets, whether the proof holds, what is written down, then the words of the hints.
_TAKE_IN = f"""
{rate.SPEND}
{hooks.NOTE}
{hints.GIVE}
local _, wait = spend(KEYS[1], ARGV[1], 60, 1)
if wait == 0 and ARGV[3] == '1' then _, wait = spend(KEYS[2], ARGV[2], 60, 1) end
if wait > 0 then
  note(KEYS[3], ARGV[4], ARGV[5], ARGV[6], '{REFUSED}', '{_TOO_MANY}')
  return {{tostring(wait)}}
end
note(KEYS[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8])
return {{'0', unpack(give_hints({{unpack(KEYS, 4)}}, {{unpack(ARGV, 9)}}))}}
"""
# The SHA-1 of the script, for EVALSHA.
_NAME = hashlib.sha1(_TAKE_IN.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A hook that was read, and what comes of it."""

    hook: OpenHook
    address: str
    event: str
    delivery: str
    outcome: str
    is_proven: bool = True
    error: str = ""
    hint_at: Sequence[Watched] = ()
    recheck_owner: str = ""
    """The account whose repositories the GitHub App may read since, or no longer."""
    request_id: str = ""

    def keys_and_words(self) -> tuple[list[str], list[str | bytes | int]]:
        buckets = rate.buckets_of_hook(self.address, self.hook.public_id)
        hint_keys, hint_words = hints.script_arguments(self.hint_at, by_hook=True)
        keys = [*buckets, hooks.log_key(self.hook.public_id), *hint_keys]
        sent = (text.encode(errors="replace") for text in (self.event, self.delivery))
        written_down: list[str | bytes | int] = [hint_words[0], *sent, self.outcome, self.error]
        return keys, [*buckets.values(), int(self.is_proven), *written_down, *hint_words]


# What is left to be done after the answer, if anything; or why the hook is not taken.
TakenIn = Callable[[], None] | RateLimited | None


def prepare() -> None:
    """Open the connection to Redis, and let it know the script."""
    with queue.without_waiting():
        _load_script()


def take_in(arrived: Sequence[Arrival]) -> list[TakenIn]:
    """Raises redis.RedisError, quickly, if Redis does not answer."""
    with queue.without_waiting():
        return _take_in(arrived)


def take_in_late(arrived: Sequence[Arrival]) -> None:
    """These were answered with 503, because Redis was slow. A git host sends a hook once: if Redis answers by now, the
    looks are asked for all the same."""
    try:
        for ask_for_looks in filter(callable, _take_in(arrived)):
            ask_for_looks()
    except redis.RedisError as error:
        log.warning("Hooks that were answered with 503 are left to the planned looks: %s", error)


def _take_in(arrived: Sequence[Arrival]) -> list[TakenIn]:
    questions = [arrival.keys_and_words() for arrival in arrived]
    try:
        answers = _ask(questions)
    except NoScriptError:  # Redis was started again
        _load_script()
        answers = _ask(questions)
    return [_read(arrival, answer) for arrival, answer in zip(arrived, answers, strict=True)]


def _load_script() -> None:
    queue.connection_in_use().script_load(_TAKE_IN)


def _ask(questions: Sequence[tuple[list[str], list[str | bytes | int]]]) -> list[Any]:
    with queue.connection_in_use().pipeline(transaction=False) as pipeline:
        for keys, words in questions:
            pipeline.evalsha(_NAME, len(keys), *keys, *words)
        return pipeline.execute()


def _read(arrival: Arrival, answer: list[Any]) -> TakenIn:
    wait, *found = answer
    if float(wait):
        return RateLimited(float(wait))
    if hints.need_no_look(found) and not arrival.recheck_owner:
        return None
    return partial(_ask_for_looks, arrival, found)


def _ask_for_looks(arrival: Arrival, found: Sequence[int]) -> None:
    """Nothing of a hook is believed but that a look is worth it: a worker asks the host what there is.

    The git host has its answer and will not send the hook again, so a Redis that is slow now is waited for.
    """
    try:
        with log_context.bound(request_id=arrival.request_id):
            hints.request_looks(arrival.hint_at, found)
            if arrival.recheck_owner:
                messages.recheck_owner(arrival.recheck_owner)
    except redis.RedisError as error:
        log.warning("The look that a hook has hinted at is left to the next hook or planned look: %s", error)
