"""A backup of a service that works, restored somewhere else: every app ends with the right files."""

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from tests.support import postgres
from tests.support.api_cast import ClientApp, settings_for
from tests.support.service import Service, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    with GitHost(tmp_path / "host") as host:
        yield host


@pytest.fixture
def handbook(host: GitHost) -> HostedRepository:
    repository = host.create("acme/handbook", private_to={"ghp_alice"})
    repository.commit({"README.md": "first", "kept.md": "kept", "goes.md": "goes", "goes-later.md": "goes"})
    return repository


@pytest.fixture
def elsewhere(service: Service) -> Iterator[Service]:
    """Another machine: another data directory and another database, with nothing in it."""
    with ExitStack() as stack:
        other = Service()
        stack.callback(other.close)
        other.port, other.environment["PORT"] = service.port, str(service.port)
        yield other


def ids(receiver: Receiver) -> list[str]:
    return [request.headers["webhook-id"] for request in receiver.requests]


def test_every_app_ends_with_the_right_files(
    service: Service, elsewhere: Service, host: GitHost, handbook: HostedRepository, alice: Receiver, tmp_path: Path
) -> None:
    for each in (service, elsewhere):
        each.environment |= settings_for(host) | {"PATH": postgres.path_with_programs()}
    service.start()
    app = ClientApp(service, "Alice's search", alice)
    repository_id = app.watch(handbook.url, "ghp_alice").json()["repository_id"]
    app.wait_until_synced(repository_id)
    path = f"/api/repositories/{repository_id}"

    def alice_has(files: dict[str, bytes]) -> None:
        wait_until(lambda: alice.files_of(repository_id) == files, "Alice has the files")

    file, keys = tmp_path / "monday.tar.gz", tmp_path / "keys.env"
    for number in range(3):  # workers write while the backup is made
        handbook.commit({f"busy-{number}.md": "busy"})
        service.manage("backup", str(tmp_path / f"{number}.tar.gz"))
    alice_has(handbook.files())
    app.wait_until_synced(repository_id)
    said = service.manage("backup", str(file), "--keys", str(keys)).stdout
    assert str(keys) in said
    assert {path.stat().st_mode & 0o777 for path in (file, keys)} == {0o600}

    # After the backup: told to Alice, and unknown to the rows that come back.
    handbook.commit({"README.md": "second", "new.md": "new", "doomed.md": "told, and gone by the time of the restore"})
    alice_has(handbook.files())
    service.manage("shell", "-c", "from snapshots.delivery import redelivery; from repositories.models import Watch;"
                   " redelivery.resync(Watch.objects.get())")  # fmt: skip
    handbook.commit({"goes.md": None})
    alice_has(handbook.files())
    app.wait_until_synced(repository_id)
    cursor = app.get(f"{path}/changes?limit=500")["cursor"]
    assert service.stop() == 0
    handbook.commit({"README.md": "first", "doomed.md": None, "goes-later.md": None})
    told_before = ids(alice)

    refused = elsewhere.manage("restore", str(file), check=False)
    assert refused.returncode == 1
    assert "--keys FILE" in refused.stderr
    elsewhere.manage("restore", str(file), "--keys", str(keys))
    assert "is not empty" in elsewhere.manage("restore", str(file), check=False).stderr
    elsewhere.start()
    assert "already running" in elsewhere.manage("restore", str(file), check=False).stderr

    # No row knows of doomed.md: only a comparison of all that Alice has (verify) can find it.
    alice_has(handbook.files() | {"doomed.md": b"told, and gone by the time of the restore"})
    app.wait_until_synced(repository_id)
    told_after = ids(alice)[len(told_before) :]
    assert not set(told_before) & set(told_after), "a receiver that drops known ids would have dropped these"
    first = alice.requests[len(told_before)]
    assert first.commit_sha == handbook.tip(), "nothing of the older commit was told"
    assert app.call("GET", f"{path}/changes?since={cursor}").status == 410

    handbook.commit({"README.md": "third"})
    wait_until(lambda: alice.files_of(repository_id)["README.md"] == b"third", "life goes on")
    assert "doomed.md" in alice.files_of(repository_id)


def test_a_new_watch_has_ids_that_the_lost_one_cannot_have_had(
    service: Service, elsewhere: Service, host: GitHost, alice: Receiver, tmp_path: Path
) -> None:
    """The app watches after the backup, and again after the restore, which does not know the first time."""
    for each in (service, elsewhere):
        each.environment |= settings_for(host) | {"PATH": postgres.path_with_programs()}
    service.start()
    app = ClientApp(service, "Alice's search", alice)
    file, keys = tmp_path / "empty.tar.gz", tmp_path / "keys.env"
    service.manage("backup", str(file), "--keys", str(keys))
    first = host.create("acme/first")
    first.commit({"a.md": "a"})
    made = app.watch(first.url)
    app.wait_until_synced(made.json()["repository_id"])
    service.stop()

    elsewhere.manage("restore", str(file), "--keys", str(keys))
    elsewhere.start()
    second = host.create("acme/second")
    second.commit({"b.md": "b"})
    app.wait_until_synced(app.watch(second.url).json()["repository_id"])
    assert len(ids(alice)) == len(set(ids(alice))) == 2


@pytest.mark.any_database
def test_what_is_queued_in_a_shared_redis_is_forgotten(
    service: Service, elsewhere: Service, valkey_url: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.env"
    for each in (service, elsewhere):
        each.environment |= {"REDIS_URL": valkey_url, "PATH": postgres.path_with_programs()}
    service.manage("migrate")
    service.manage("backup", str(tmp_path / "b.tar.gz"), "--keys", str(keys))
    service.redis().sadd("rq:workers", "rq:worker:" + (name := secrets.token_hex(4)))
    service.redis().hset(f"rq:worker:{name}", mapping={"birth": "2026-11-16T00:00:00Z", "queues": "snapshots"})
    said = elsewhere.manage("restore", str(tmp_path / "b.tar.gz"), "--keys", str(keys), check=False).stderr
    assert "1 workers are known in Redis" in said
    service.redis().delete("rq:workers", f"rq:worker:{name}")
    service.manage("shell", "-c", "from repositories import messages; messages.take_snapshot(1, planned=True)")
    assert service.redis().llen("rq:queue:snapshots") == 1
    elsewhere.manage("restore", str(tmp_path / "b.tar.gz"), "--keys", str(keys))
    assert service.redis().llen("rq:queue:snapshots") == 0


@pytest.fixture
def valkey_url(valkey_socket: Path, valkey: object) -> str:
    return f"unix://{valkey_socket}"
