"""Unwatching while others work: no error, no clone without a row, no row without its files delivered."""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from tests.support.api_cast import ClientApp, clones_of, settings_for, tracebacks_of
from tests.support.service import Service, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("unwatch"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitHost]:
    with GitHost(tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.fixture(scope="module")
def service(host: GitHost) -> Iterator[Service]:
    environment = {"SCAN_CONCURRENCY": "2", "DELIVERY_CONCURRENCY": "2", "DOCORA_APP_RATE": "0"}
    with Service(**settings_for(host), **environment) as service:
        yield service
        assert tracebacks_of(service) == []


@pytest.fixture
def app(service: Service, alice: Receiver) -> ClientApp:
    return ClientApp(service, "Alice's search", alice)


def repository_with(host: GitHost, name: str, files: int) -> HostedRepository:
    repository = host.create(f"acme/{name}")
    repository.commit({f"docs/{number:03}.md": f"{name} {number}\n" * 50 for number in range(files)})
    return repository


def wait_until_nothing_is_left(service: Service) -> None:
    wait_until(lambda: not clones_of(service), "the clone is deleted")
    drafts = service.data / "repos" / ".drafts"
    wait_until(lambda: not any(_children(drafts)), "the half-made clone is deleted")


def _children(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def test_unwatching_during_a_clone_is_instant_and_leaves_nothing(
    service: Service, host: GitHost, app: ClientApp
) -> None:
    repository = repository_with(host, "slow", 3)
    with host.faults.put(GitFault(repository=repository, kinds={"fetch"}, hang=True)):
        repository_id = app.watch(repository.url).json()["repository_id"]
        wait_until(lambda: host.count(repository, "fetch") > 0, "the clone begins")
        started = time.monotonic()
        assert app.unwatch(repository_id).status == 204
        assert time.monotonic() - started < 5
        assert app.unwatch(repository_id).status == 404
    wait_until_nothing_is_left(service)
    assert app.receiver.requests == []


def test_unwatching_during_a_delivery_ends_it_and_a_later_watch_gets_every_file(
    service: Service, host: GitHost, app: ClientApp
) -> None:
    repository = repository_with(host, "many", 400)
    with app.receiver.faults.put(ReceiverFault(delay=0.05)):
        repository_id = app.watch(repository.url).json()["repository_id"]
        app.receiver.wait_until(lambda: len(app.receiver.requests) > 10)
        assert app.unwatch(repository_id).status == 204
        wait_until_nothing_is_left(service)
    wait_until(lambda: _is_quiet(app.receiver), "the delivery ends")
    assert len(app.receiver.requests) < 400
    app.receiver.mirror.forget(repository_id)
    again = app.watch(repository.url).json()["repository_id"]
    app.wait_until_synced(again)
    assert app.receiver.files == {again: repository.files()}
    assert app.receiver.problems == []
    app.unwatch(again)
    wait_until_nothing_is_left(service)


def _is_quiet(receiver: Receiver) -> bool:
    before = len(receiver.requests)
    time.sleep(0.5)
    return len(receiver.requests) == before


def test_of_two_unwatches_at_once_one_finds_nothing(service: Service, host: GitHost, app: ClientApp) -> None:
    repository = repository_with(host, "twice", 2)
    with ThreadPoolExecutor(2) as threads:
        for _ in range(10):
            repository_id = app.watch(repository.url).json()["repository_id"]
            answers = list(threads.map(app.unwatch, [repository_id] * 2))
            assert sorted(answer.status for answer in answers) == [204, 404]
    wait_until_nothing_is_left(service)


def test_a_hundred_watches_and_unwatches_at_random_end_well(
    service: Service, host: GitHost, app: ClientApp, bob: Receiver
) -> None:
    other = ClientApp(service, "Bob's wiki", bob)
    app.receiver.mirror.repeats_are_allowed = bob.mirror.repeats_are_allowed = True
    repositories = [repository_with(host, f"random-{number}", 10) for number in range(3)]
    with ThreadPoolExecutor(4) as threads:
        steps = [(number, random.choice([app, other]), random.choice(repositories)) for number in range(100)]  # noqa: S311
        assert set(threads.map(lambda step: _watch_or_unwatch(*step), steps)) <= {201, 204, 404}
    for client in (app, other):
        ids = {client.watch(repository.url).json()["repository_id"]: repository for repository in repositories}
        for repository_id, repository in ids.items():
            client.wait_until_synced(repository_id)
            assert client.receiver.files[repository_id] == repository.files()
        for repository_id in ids:
            assert client.unwatch(repository_id).status == 204
    wait_until_nothing_is_left(service)


def _watch_or_unwatch(number: int, client: ClientApp, repository: HostedRepository) -> int:
    watched = [
        item["repository_id"]
        for item in client.get("/api/repositories")["repositories"]
        if item["github_url"] == repository.url
    ]
    if watched and random.random() < 0.6:  # noqa: S311
        return client.unwatch(watched[0]).status
    return client.watch(repository.url).status
