"""A repository for runs that take a while, and one whose circuit is open."""

import pytest
from pytest_django import Settings

from docora.demo.githost import GitFault, GitHost, HostedRepository
from repositories import accounts, watches
from repositories.models import App, Watch
from tests.support.notice_cast import look
from tests.support.worker import Work


@pytest.fixture
def many(git_host: GitHost) -> HostedRepository:
    repository = git_host.create("acme/many")
    repository.commit({f"{number:03}.md": f"number {number}\n" for number in range(60)})
    return repository


@pytest.fixture
def broken(
    alice_app: App, bob_app: App, git_host: GitHost, remote: HostedRepository, work: Work, settings: Settings
) -> Watch:
    """Alice's watch of a repository whose circuit has opened. Bob watches it too, and wants to know of recoveries."""
    accounts.choose_events(bob_app, ["sync_recovered"])
    watch = watches.watch(alice_app, remote.url)
    watches.watch(bob_app, remote.url)
    work()
    with git_host.faults.put(GitFault(status=503)):
        look(watch.repository, work, times=settings.CIRCUIT_BREAKER_THRESHOLD)
    return watch
