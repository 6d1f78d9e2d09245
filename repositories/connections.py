"""The one place where a Redis client is made."""

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry


def connect(*, timeout: float = 5) -> redis.Redis:
    """A client that notices a server that is gone, and gives up after `timeout` seconds per command."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=30,
    )


def connect_impatiently(*, timeout: float) -> redis.Redis:
    """A client for questions that are better left open than waited for: it never tries again."""
    client = connect(timeout=timeout)
    client.set_retry(Retry(NoBackoff(), 0))
    return client
