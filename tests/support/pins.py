"""Pins that are older than they are."""

import os

from repositories.git import clones


def age_pins(clone_key: str) -> None:
    for pin in (clones.path_of(clone_key) / "refs/docora/pin").glob("*"):
        os.utime(pin, (0, 0))
