"""A Redis that does not answer, told to the person at the terminal."""

import redis
from django.conf import settings
from django.core.management.base import CommandError

from repositories.base import connections


def check_redis() -> None:
    """At the start of a command that needs the queue or the locks."""
    try:
        connections.connect_impatiently(timeout=2).ping()
    except redis.RedisError:
        raise CommandError(
            f"Redis does not answer: is Docora running, and on {settings.DATA_DIR} (DOCORA_DATA_DIR)?"
        ) from None
