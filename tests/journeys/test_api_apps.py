"""Two apps, two tokens, one private repository; and clients who wait for changes."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from tests.support.api_cast import ClientApp, clones_of, settings_for, tracebacks_of
from tests.support.service import Service, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.any_database, pytest.mark.timeout(300)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    with GitHost(tmp_path / "host") as host:
        yield host


@pytest.fixture
def private(host: GitHost) -> HostedRepository:
    repository = host.create("acme/secret", private_to={"ghp_alice", "ghp_bob"})
    repository.commit({"plan.md": "one", "docs/a.md": "a"})
    return repository


def test_two_apps_read_one_private_repository_each_with_its_own_token(
    service: Service, host: GitHost, private: HostedRepository, alice: Receiver, bob: Receiver
) -> None:
    service.environment |= settings_for(host) | {"DOCORA_ACCESS_PROOF_AGE": "1"}
    service.start()
    alices, bobs = ClientApp(service, "Alice's search", alice), ClientApp(service, "Bob's wiki", bob)

    assert alices.watch(private.url).status == 404
    assert alices.watch(private.url, "ghp_mallory").status == 404
    made = alices.watch(private.url, "ghp_alice")
    assert (made.status, made.json()["is_private"]) == (201, True)
    repository_id = made.json()["repository_id"]
    path = f"/api/repositories/{repository_id}"
    assert bobs.call("GET", path).status == 404
    assert bobs.watch(f"{private.url}.git", "ghp_bob").json()["repository_id"] == repository_id
    for client in (alices, bobs):
        client.wait_until_synced(repository_id)
        assert client.receiver.files == {repository_id: private.files()}
        assert client.call("GET", f"{path}/files/plan.md").content == b"one"
    assert len(clones_of(service)) == 1

    host.revoke(private, "ghp_bob")
    private.commit({"plan.md": "two"})
    wait_until(lambda: alices.call("GET", f"{path}/files/plan.md").content == b"two", "Alice reads the new plan")
    wait_until(lambda: alice.files[repository_id]["plan.md"] == b"two", "Alice is told the new plan")
    wait_until(lambda: bobs.call("GET", f"{path}/files/plan.md").status == 403, "Bob is shut out")
    assert bobs.call("GET", f"{path}/changes").status == 403
    assert bob.files[repository_id]["plan.md"] == b"one"

    host.grant(private, "ghp_bobs_new_one")
    answer = bobs.call("PATCH", f"{path}/token", {"github_token": "ghp_bobs_new_one"})
    assert (answer.status, answer.json()) == (200, {"message": "Token updated successfully"})
    bobs.wait_until_synced(repository_id)
    assert bob.files == {repository_id: private.files()}

    assert alices.unwatch(repository_id).status == 204
    assert bobs.call("GET", f"{path}/files/plan.md").content == b"two"
    assert bobs.unwatch(repository_id).status == 204
    wait_until(lambda: not clones_of(service), "the clone is deleted")
    assert alice.problems == bob.problems == tracebacks_of(service) == []


def test_clients_who_wait_get_the_change_at_once_and_stand_in_nobodys_way(
    service: Service, host: GitHost, private: HostedRepository, alice: Receiver
) -> None:
    service.environment |= settings_for(host) | {"DOCORA_WEB_THREADS": "4"}
    app = ClientApp(service.start(), "Alice's search", alice)
    repository_id = app.watch(private.url, "ghp_alice").json()["repository_id"]
    app.wait_until_synced(repository_id)
    path = f"/api/repositories/{repository_id}/changes"
    since = app.get(path)["cursor"]
    with ThreadPoolExecutor(8) as threads:
        pollers = [threads.submit(app.get, f"{path}?since={since}&wait=30") for _ in range(8)]
        # Half of the four threads may wait: the other pollers are answered at once.
        wait_until(lambda: sum(poller.done() for poller in pollers) == 6, "those without a seat are answered")
        waiting = [poller for poller in pollers if not poller.done()]
        started = time.monotonic()
        assert app.get("/api/app")["watches"] == 1
        assert time.monotonic() - started < 10
        private.commit({"plan.md": "two"})
        told = [poller.result()["changes"] for poller in waiting]
    assert [[(change["event"], change["path"]) for change in changes] for changes in told] == [
        [("updated", "plan.md")],
        [("updated", "plan.md")],
    ]
    since = app.get(path)["cursor"]
    with ThreadPoolExecutor(1) as threads:
        poller = threads.submit(app.get, f"{path}?since={since}&wait=30")
        time.sleep(1)
        started = time.monotonic()
        service.stop()
        assert time.monotonic() - started < 15
        assert poller.result()["changes"] == []
