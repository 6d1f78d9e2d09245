"""What the processes have in memory: each has what it needs, and no more."""

import os
import signal
import subprocess
import sys

import pytest

from docora.processes import forked

OF_THE_WEB = ("docora.urls", "docora.wsgi", "docora.api.app", "docora.console.site", "ninja", "pydantic")


def test_a_fork_gives_its_outcome_and_keeps_what_it_imported() -> None:
    def work() -> str:
        import this  # noqa: F401

        return f"{'this' in sys.modules} in {os.getpid()}"

    outcome = forked.outcome_of(work)
    assert outcome.startswith("True in ")
    assert outcome != f"True in {os.getpid()}"
    assert "this" not in sys.modules


def test_a_fork_that_is_killed_tells_so() -> None:
    def die() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    assert forked.outcome_of(die) == "its process ended with status -9"


def test_what_the_supervisor_forks_has_nothing_of_the_web_and_no_migrations() -> None:
    script = (
        "import django, sys; django.setup();"
        "from docora.management.commands import up;"
        "from docora.processes import warm_up; warm_up.for_children();"
        "print(*sys.modules)"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "docora.settings"}
    output = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    loaded = output.split()
    assert "snapshots.delivery.run" in loaded
    assert [name for name in loaded if name in OF_THE_WEB or ".migrations.0" in name] == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_is_forked_is_warm_and_has_no_thread_and_no_connection() -> None:
    script = (
        "import django, os, sys, threading; django.setup();"
        "from docora.processes import warm_up; before = os.listdir('/proc/self/fd'); warm_up.for_children();"
        "from repositories.base import queue;"
        "print(queue.connection.cache_info().currsize, threading.active_count(),"
        " len(os.listdir('/proc/self/fd')) - len(before))"
    )
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "docora.settings"}
    output = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert output.split() == ["1", "1", "0"]
