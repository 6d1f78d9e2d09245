"""A Redis that nobody answers for."""

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry


def redis_away() -> redis.Redis:
    """Each command fails at once: that a client first tries again for some seconds is the library's own."""
    return redis.Redis(unix_socket_path="/nowhere/valkey.sock", retry=Retry(NoBackoff(), 0))
