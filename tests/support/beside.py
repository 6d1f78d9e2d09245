"""Something that happens in another thread, on a database connection of its own, while the test's thread is busy."""

import threading
from collections.abc import Callable

from django.db import connections


def beside(act: Callable[[], object]) -> None:
    """Do it and wait for it; for a receiver's `on_request`, in whose thread the database may not be used."""

    def in_a_thread() -> None:
        try:
            act()
        finally:
            connections.close_all()

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
