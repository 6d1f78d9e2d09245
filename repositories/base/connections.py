"""The one place where a Redis client is made."""

from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

# Else every new connection reads redis-py's version from its package and tells it to the server: milliseconds, in the
# fork of every job.
ANONYMOUS: dict[str, Any] = {"driver_info": None}


def connect(*, timeout: float = 5) -> redis.Redis:
    """A client that notices a server that is gone, and gives up after `timeout` seconds per command."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=30,
        **ANONYMOUS,
    )


def connect_impatiently(*, timeout: float) -> redis.Redis:
    """A client for questions that are better left open than waited for: it never tries again."""
    client = connect(timeout=timeout)
    client.set_retry(Retry(NoBackoff(), 0))
    return client
