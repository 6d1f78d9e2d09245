"""A delivered set of files belongs to exactly the commit that is named, whoever works at the same time."""

import time
from pathlib import Path

import pytest

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from tests.support.git_cast import scene
from tests.support.service import wait_until

pytestmark = pytest.mark.slow

FILES = 12
SECONDS = 12.0


def commit_generations(repository: HostedRepository, seconds: float) -> dict[str, int]:
    """Commit every 100 ms; every file carries its generation. Returns the generation of each commit."""
    generations: dict[str, int] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        generation = len(generations)
        sha = repository.commit({f"file{number}.txt": f"generation {generation}" for number in range(FILES)})
        generations[sha] = generation
        time.sleep(0.1)
    return generations


def torn(receiver: Receiver, generations: dict[str, int]) -> list[str]:
    """Every file that was told with another content than its commit has."""
    return [
        f"{request.path} at {request.commit_sha}: {request.payload['file']['content']}"
        for request in receiver.requests
        if request.payload["file"]["content"] != f"generation {generations[request.commit_sha]}"
    ]


def test_no_snapshot_is_torn(tmp_path: Path) -> None:
    with scene(tmp_path, apps=3, SCAN_CONCURRENCY="2", DELIVERY_CONCURRENCY="2") as play:
        repository = play.host.create("acme/restless")
        first = repository.commit({f"file{number}.txt": "generation -1" for number in range(FILES)})
        for app in play.apps:
            app.watch(repository.url)
        generations = {first: -1} | commit_generations(repository, SECONDS)
        last = repository.files()
        for receiver in play.receivers:
            wait_until(lambda r=receiver: last in r.files.values(), "the last commit arrives")  # type: ignore[misc]
    for receiver in play.receivers:
        snapshots = {request.commit_sha for request in receiver.requests}
        assert torn(receiver, generations) == []
        assert receiver.problems == []
        assert len(snapshots) > 3, "several commits were told while others came in"
