"""A look at the watched repository."""

import pytest

from repositories import watches
from repositories.models import Repository
from tests.support.worker import Look, Work


@pytest.fixture
def look(work: Work) -> Look:
    """Take a snapshot of the only repository, deliver it, and return what is known of it now."""

    def take() -> Repository:
        watches.request_snapshot(Repository.objects.get())
        work()
        return Repository.objects.get()

    return take
