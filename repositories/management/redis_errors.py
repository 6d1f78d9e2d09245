"""A Redis that does not answer, told to the person at the terminal."""

import redis
from django.core.management.base import CommandError

from repositories.base import connections, places


def redis_answers() -> bool:
    try:
        connections.connect_impatiently(timeout=2).ping()
    except redis.RedisError:
        return False
    return True


def check_redis() -> None:
    """At the start of a command that needs the queue or the locks."""
    if not redis_answers():
        raise CommandError(
            f"Redis does not answer ({places.both()}): is Docora running, with the settings of this shell?"
            " See DOCORA_DATA_DIR and REDIS_URL."
        )
