"""The disk of each host's clones, as its workers last saw it: a web server may not see their volumes."""

import json
import os
import socket
import time
from dataclasses import dataclass

import redis
from django.conf import settings
from rq.utils import as_text

_KEY = "docora:disks"
# Seconds after which a host whose workers are not heard of is left out, and forgotten.
_KEPT_FOR = 3600.0


@dataclass(frozen=True, slots=True)
class Disk:
    free: int
    size: int


def note(connection: redis.Redis) -> None:
    """What this host has. Raises RedisError, and OSError where the folder cannot be seen."""
    disk = os.statvfs(settings.REPOS_BASE_PATH)
    facts = [disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, time.time()]
    connection.hset(_KEY, socket.gethostname(), json.dumps(facts))


def known(connection: redis.Redis) -> dict[str, Disk]:
    disks = {}
    for host, facts in connection.hgetall(_KEY).items():
        free, size, at = json.loads(facts)
        if at > time.time() - _KEPT_FOR:
            disks[as_text(host)] = Disk(free, size)
        else:
            connection.hdel(_KEY, host)
    return disks
