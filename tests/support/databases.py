"""Which cases of a test run on which database."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_on_every_database(cases: Iterable[Any]) -> list[Any]:
    """For cases that differ before or after anything is stored: what is stored is the same for the first of them."""
    first, *others = cases
    return [first, *(pytest.param(case, marks=pytest.mark.any_database) for case in others)]
