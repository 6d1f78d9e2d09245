"""gunicorn's configuration that is code."""

import signal
from types import FrameType
from typing import Any


def post_worker_init(worker: Any) -> None:
    """A worker that is asked to end lets its requests finish: those that only wait for changes must not hold it."""
    from docora.api.long_poll import send_everybody_home

    def leave(number: int, frame: FrameType | None) -> None:
        send_everybody_home()
        worker.handle_exit(number, frame)

    signal.signal(signal.SIGTERM, leave)
