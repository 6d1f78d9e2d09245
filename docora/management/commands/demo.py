"""`manage.py demo`: the whole story in a terminal, by itself."""

import signal
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand
from rich.console import Console

from docora.demo.receiver import Receiver
from docora.demo.stage import INTERRUPTS, DemoFailed, stage
from docora.demo.story import Client, Story


class Command(BaseCommand):
    help = (
        "Tell the whole story in under a minute: a git host, Docora and two apps on this machine alone, in a"
        " temporary folder. Your own data and settings are not touched. Exits with 1 if something did not arrive."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--patience", type=float, default=60, help="give up on a step after so many seconds (%(default)g)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        console = Console(highlight=False, soft_wrap=True)
        try:
            _play(console, options["patience"])
        except DemoFailed as error:
            console.print(f"\n[bold red]The demo failed:[/bold red] {error}")
            sys.exit(1)
        except KeyboardInterrupt:
            console.print("\nInterrupted; everything is stopped and removed.")
            sys.exit(130)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the story; the clearing up after it is short, and a second one must not cut it off."""
    for number in INTERRUPTS:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in INTERRUPTS:
            signal.signal(number, signal.SIG_IGN)


def _play(console: Console, patience: float) -> None:
    with stage() as (git_host, docora), Receiver() as first, Receiver() as second:
        story = Story(console, git_host, docora, patience=patience)
        try:
            with _interruptible():
                story.tell(Client("Search", first), Client("Wiki", second))
        except DemoFailed:
            for line in docora.last_words():
                console.print(f"   {line}", markup=False)
            raise
