"""`manage.py scheduler`: enqueues what is due, again and again."""

import logging
import signal
import sys
import time
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings
from django.core.management.base import BaseCommand
from django.db import DatabaseError, close_old_connections
from redis import RedisError

from snapshots.schedule import tick

logger = logging.getLogger("docora.scheduler")


class Command(BaseCommand):
    help = (
        "Enqueue what is due, every SCAN_INTERVAL seconds, until SIGTERM or Ctrl-C."
        " A tick is idempotent: schedulers on several hosts do no harm."
    )

    def handle(self, **_options: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)
        while True:
            close_old_connections()
            try:
                tick()
            except (DatabaseError, RedisError) as error:
                logger.warning("tick failed, the next one is in %g s: %s", settings.SCAN_INTERVAL, error)
            time.sleep(settings.SCAN_INTERVAL)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)
