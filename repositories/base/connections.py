"""The one place where a Redis client is made."""

from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.connection import HiredisRespSerializer
from redis.retry import Retry


class _Packer(HiredisRespSerializer):
    """Gives numbers to hiredis as text. hiredis 3.5.0 ends the process with a segmentation fault if a signal handler
    raises while it formats a number, as the handler of a job's time-out does."""

    def pack(self, *args: Any) -> Any:
        words: list[Any] = [repr(arg) if type(arg) in (int, float) else arg for arg in args]
        return super().pack(*words)


OPTIONS: dict[str, Any] = {
    # Else every new connection reads redis-py's version from its package and tells it to the server: milliseconds, in
    # the fork of every job.
    "driver_info": None,
    "command_packer": _Packer(),
}


def connect(*, timeout: float = 5) -> redis.Redis:
    """A client that notices a server that is gone, and gives up after `timeout` seconds per command."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=30,
        **OPTIONS,
    )


def connect_impatiently(*, timeout: float) -> redis.Redis:
    """A client for questions that are better left open than waited for: it never tries again."""
    client = connect(timeout=timeout)
    client.set_retry(Retry(NoBackoff(), 0))
    return client
