"""A hook that an app has made, and what became of the pushes that came to it."""

from dataclasses import dataclass
from typing import Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from repositories import hooks
from repositories.base import queue
from repositories.models import Hook, Watch


@dataclass(frozen=True)
class MadeHook:
    """A watch, and the hook that its app has made for it."""

    watch: Watch
    url: str
    secret: str

    @classmethod
    def of(cls, watch: Watch) -> Self:
        hook, secret = hooks.open_for(watch)
        return cls(watch, f"/hooks/{hook.public_id}", secret)

    @property
    def hook(self) -> Hook:
        return Hook.objects.get(watch=self.watch)

    @property
    def log(self) -> hooks.Log:
        return hooks.logs([self.hook.public_id])[self.hook.public_id]


def unreachable() -> redis.Redis:
    return redis.Redis(unix_socket_path="/nonexistent/valkey.sock", retry=Retry(NoBackoff(), 0))


def waiting() -> list[str]:
    return queue.named(queue.URGENT).job_ids
