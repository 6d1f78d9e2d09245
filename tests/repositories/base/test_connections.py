"""The one place where a Redis client is made."""

import contextlib
import multiprocessing
import signal
from typing import Any

from redis.connection import Connection, HiredisRespSerializer

# By its name here: the cast replaces the one in its module.
from repositories.base.connections import OPTIONS, connect


class Alarm(Exception):
    """What a job's time-out raises, wherever the main thread happens to be."""


def _ring(number: int, frame: object) -> None:
    raise Alarm


def _pack_under_alarms() -> None:
    connection = connect().connection_pool.make_connection()
    signal.signal(signal.SIGALRM, _ring)
    for _ in range(300):
        with contextlib.suppress(Alarm):
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            while True:
                connection.pack_command("MGET", *[1, 0.5] * 100)


def test_a_time_out_while_a_command_is_packed_does_not_end_the_process() -> None:
    process = multiprocessing.get_context("fork").Process(target=_pack_under_alarms)
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_numbers_are_packed_as_ever() -> None:
    words: list[Any] = ["EVALSHA", b"\xff", "\xe4", 1, -(10**20), 0.1, 1e300, float("inf"), memoryview(b"view")]
    assert Connection(**OPTIONS).pack_command(*words) == HiredisRespSerializer().pack(*words)
