"""`manage.py scheduler`: requests what is due, again and again, and looks at what seems unchanged."""

import logging
import signal
import sys
import time
from types import FrameType
from typing import Any, NoReturn

from django.conf import settings
from django.db import DatabaseError, close_old_connections
from redis import RedisError

from docora.condition import alerts
from docora.processes import due_later
from repositories import canary
from repositories.base import log_context
from repositories.management.command import OperatorCommand
from snapshots.looks import Looks
from snapshots.schedule import begin_tick

logger = logging.getLogger("docora.scheduler")


class Command(OperatorCommand):
    help = (
        "Enqueue what is due, every SCAN_INTERVAL seconds, until SIGTERM or Ctrl-C."
        " Healthy repositories are looked at here, DOCORA_LOOKS_PER_HOST at a time: only a change becomes a job."
        " Jobs that wait for their time are queued when it has come."
        " A tick is idempotent: schedulers on several hosts share the work."
    )

    def handle(self, **_options: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _leave)
        canary.check_keys_at_start()
        with due_later.queueing(), Looks() as looks:
            while True:
                close_old_connections()
                # What a tick asks for can be told from what a request asks for, and one tick from another.
                with log_context.bound(request_id=f"tick-{log_context.new_request_id()}"):
                    alerts.check_without_raising()
                    _tick(looks)


def _tick(looks: Looks) -> None:
    try:
        begin_tick(looks)
        looks.work(settings.SCAN_INTERVAL)
    except (DatabaseError, RedisError) as error:
        logger.warning("tick failed, the next one is in %g s: %s", settings.SCAN_INTERVAL, error)
        time.sleep(settings.SCAN_INTERVAL)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(0)
