"""At most so many fetches from one host at the same time, in any number of workers.

A slot is an ordinary lock, so the slot of a dead holder is free after the TTL at the latest. It is taken
under the repository's lock, and its holder waits for no other lock, so there is no deadlock.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from django.conf import settings

from repositories.errors import LockTimeoutError
from repositories.repo_lock import repo_lock


@contextmanager
def fetch_slot(address: str, *, job_id: str) -> Iterator[None]:
    """Take a free slot, or wait for one of them. Raises LockTimeoutError when that takes too long."""
    slots = [f"fetch:{address}:{number}" for number in range(settings.FETCHES_PER_HOST)]
    random.shuffle(slots)
    with ExitStack() as stack:
        if not any(_take_at_once(stack, slot, job_id) for slot in slots):
            stack.enter_context(repo_lock(slots[0], job_id=job_id))
        yield


def _take_at_once(stack: ExitStack, slot: str, job_id: str) -> bool:
    try:
        stack.enter_context(repo_lock(slot, job_id=job_id, wait=0))
    except LockTimeoutError:
        return False
    return True
