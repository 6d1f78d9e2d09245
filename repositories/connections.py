"""The one place where a Redis client is made."""

import redis
from django.conf import settings


def connect(*, timeout: float = 5) -> redis.Redis:
    """A client that notices a server that is gone, and gives up after `timeout` seconds per command."""
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        health_check_interval=30,
    )
