"""A Redis that others use too: with a user of our own, a password, and TLS."""

import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import redis
from pytest_django import Settings

from docora.processes import valkey
from repositories.base import connections
from tests.support.certificates import Authority
from tests.support.git_cast import scene
from tests.support.service import ROOT, Service, wait_until

PASSWORD = "a-password-of-our-own"

# The fixture of all tests puts another Redis in its place.
_connect = connections.connect


@pytest.fixture
def shared(data_dir: Path) -> Iterator[redis.Redis]:
    """Somebody else's server, and what its administrator sees; the user is the one of the documentation."""
    path = data_dir / "shared" / "valkey.sock"
    process = valkey.start(path, persistent=False)
    with redis.Redis(unix_socket_path=str(path)) as administrator:
        [rules] = re.findall(r"ACL SETUSER docora (.*)", (ROOT / "docs" / "running.md").read_text())
        administrator.execute_command("ACL", "SETUSER", "docora", *rules.replace("PASSWORD", PASSWORD).split())
        yield administrator
    process.terminate()
    process.wait(timeout=10)


def url_of(administrator: redis.Redis, password: str = PASSWORD) -> str:
    return f"unix://docora:{password}@{administrator.connection_pool.connection_kwargs['path']}"


@pytest.mark.slow
def test_the_documented_user_is_allowed_all_that_docora_does(shared: redis.Redis, tmp_path: Path) -> None:
    shared.set("of somebody else", "untouched")
    with scene(tmp_path, apps=1, REDIS_URL=url_of(shared)) as play:
        repository = play.host.create("acme/handbook")
        repository.commit({"README.md": "first"})
        watched = play.apps[0].watch(repository.url).json()["repository_id"]
        play.apps[0].wait_until_synced(watched)
        repository.commit({"README.md": "second"})
        second = repository.files()
        wait_until(lambda: second in play.receivers[0].files.values(), "the change arrives")
        for command in (["repolocks"], ["reconcile", "--apply"], ["tick"]):
            play.service.manage(*command)
        assert play.apps[0].unwatch(watched).status == 204
        wait_until(lambda: not any(play.service.data.glob("repos/@*/*")), "the clone is deleted")
    refused = {entry["object"] for entry in shared.acl_log()}
    assert refused <= {"client|list"}, "which RQ does without"
    assert shared.get("of somebody else") == b"untouched"


def test_the_documented_user_may_not_touch_what_is_not_docoras(shared: redis.Redis) -> None:
    with redis.Redis.from_url(url_of(shared)) as ours:
        ours.set("docora:key", "1")
        for command in (["GET", "session:1"], ["FLUSHALL"], ["CONFIG", "GET", "*"], ["KEYS", "*"], ["ACL", "LIST"]):
            with pytest.raises(redis.exceptions.NoPermissionError):
                ours.execute_command(*command)


@pytest.mark.slow
def test_a_wrong_password_is_said_in_one_line(shared: redis.Redis, sqlite_service: Service) -> None:
    sqlite_service.environment["REDIS_URL"] = url_of(shared, "wrong-password")
    assert sqlite_service.launch().wait(timeout=60) == 1
    [line] = [line for line in sqlite_service.output.splitlines() if line.startswith("docora: ")]
    assert "REDIS_URL" in line
    assert "wrong-password" not in sqlite_service.output


@contextmanager
def in_tls(path: str, context: ssl.SSLContext) -> Iterator[int]:
    """The server behind a port that speaks TLS; the one in the wheel does not."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                raw, _ = listener.accept()
                threading.Thread(target=carry, args=(raw,), daemon=True).start()

    def carry(raw: socket.socket) -> None:
        wrapped = context.wrap_socket
        with suppress(OSError), wrapped(raw, server_side=True) as client, socket.socket(socket.AF_UNIX) as server:
            server.connect(path)
            while question := client.recv(65536):
                server.sendall(question)
                client.sendall(server.recv(65536))

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def test_tls_is_spoken_and_a_certificate_that_is_not_trusted_refused(
    shared: redis.Redis, settings: Settings, tmp_path: Path
) -> None:
    ours = Authority(tmp_path)
    with in_tls(str(shared.connection_pool.connection_kwargs["path"]), ours.server()) as port:
        settings.REDIS_URL = f"rediss://docora:{PASSWORD}@127.0.0.1:{port}/0"
        with _connect(timeout=5) as untrusting, pytest.raises(redis.ConnectionError, match=r"(?i)certificate"):
            untrusting.ping()
        settings.REDIS_URL += f"?ssl_ca_certs={ours.file}"
        with _connect(timeout=5) as trusting:
            assert trusting.ping()
