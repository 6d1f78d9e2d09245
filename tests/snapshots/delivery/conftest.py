"""A repository for runs that take a while."""

import pytest

from docora.demo.githost import GitHost, HostedRepository


@pytest.fixture
def many(git_host: GitHost) -> HostedRepository:
    repository = git_host.create("acme/many")
    repository.commit({f"{number:03}.md": f"number {number}\n" for number in range(60)})
    return repository
