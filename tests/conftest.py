"""The cast of the tests."""

import gc
import ipaddress
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import hypothesis
import pytest
import redis
from django.db import connection
from django.db.backends.base.creation import TEST_DATABASE_PREFIX
from django.test import TransactionTestCase
from pytest_django import DjangoDbBlocker, Settings
from whitenoise.middleware import WhiteNoiseMiddleware  # type: ignore[import-untyped]  # it ships no types

from docora.demo.bare import BareRepository
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver
from docora.limits import rate
from docora.processes import valkey as embedded
from repositories import accounts, repo_lock
from repositories.base import connections, counters, queue
from repositories.models import App, Watch
from tests.support import postgres
from tests.support.api import Api
from tests.support.browser import find_chromium
from tests.support.clean_database import Cleaner
from tests.support.hostile_host import HostileHost, hostile_host
from tests.support.prepared_watch import PreparedWatch, Stage
from tests.support.service import migrated
from tests.support.worker import Work, run_jobs

ALICE_KEY = "alice-keeps-this-key-secret"
BOB_KEY = "bob-keeps-this-key-secret-too"
# A busy machine is no reason to fail: neither a single example nor the making of examples has a time limit.
hypothesis.settings.register_profile("docora", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("docora")
_DATABASE_FIXTURES = {"db", "transactional_db", "service"}
# Until all tests are collected: what is imported meanwhile is no garbage, and to look through it takes a fifth of the
# time.
gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL, only the tests to which the database can make a difference: the others have run on SQLite.

    Tests of real processes come first: they mostly wait, and the quick ones fill the gaps.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if os.environ.get("TEST_DATABASE") != "postgresql":
        return
    kept = [item for item in items if _touches_the_database(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_collection_finish() -> None:
    """What was imported stays until the end: the garbage collector need not look through it again and again.

    And it need not come as often as where memory is dear: it took a tenth of the time of all tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if path := os.environ.get("DOCORA_TEST_FAILURES"):
        failed = terminalreporter.getreports("failed") + terminalreporter.getreports("error")
        Path(path).write_text("".join(f"{_kind(report)} {_node_id(report)}\n" for report in failed))
    if find_chromium() is None:
        terminalreporter.write_line("No Chromium found: the tests in a browser were skipped.")


def _kind(report: pytest.TestReport) -> str:
    return "slow" if "slow" in report.keywords else "quick"


def _node_id(report: pytest.TestReport) -> str:
    """As pytest takes it: without the name of the group that pytest-xdist appends."""
    return re.sub(r"@\w+$", "", report.nodeid)


def _touches_the_database(item: pytest.Item) -> bool:
    if item.get_closest_marker("any_database"):
        return False
    fixtures = set(getattr(item, "fixturenames", ()))
    return item.get_closest_marker("django_db") is not None or bool(fixtures & _DATABASE_FIXTURES)


@pytest.fixture(scope="session")
def django_db_keepdb(django_db_modify_db_settings: None) -> bool:
    """Keep what is there: a copy of a migrated database, which is made in a tenth of the time of the migrations."""
    given = connection.settings_dict
    name = str(given["TEST"]["NAME"] or f"{TEST_DATABASE_PREFIX}{given['NAME']}")
    if connection.vendor == "postgresql":
        url = migrated().database_url
        postgres.copy_database(url, f"{url.rsplit('/', 1)[0]}/{name}")
    else:
        migrated().copy_sqlite(Path(name))
    return True


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """The database with its tables, and a quick way to empty it after a test that commits."""
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patched:
        cleaner = Cleaner()
        patched.setattr(TransactionTestCase, "_fixture_teardown", lambda _: cleaner.clean())
        yield


@pytest.fixture(scope="session", autouse=True)
def static_files_are_found_once() -> Iterator[None]:
    """Every test client makes the middleware anew, which then looks at each static file: 20 ms for each client."""
    found: dict[str, Any] = {}
    find = WhiteNoiseMiddleware.add_files_from_finders

    def find_once(middleware: WhiteNoiseMiddleware) -> None:
        if not found:
            find(middleware)
            found.update(middleware.files)
        middleware.files.update(found)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WhiteNoiseMiddleware, "add_files_from_finders", find_once)
        yield


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """Short, as the embedded Valkey's socket needs it: the paths of pytest's own directories grow with each run."""
    with tempfile.TemporaryDirectory(prefix="docora-") as directory:
        yield Path(directory)


@pytest.fixture(autouse=True)
def fake_redis(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeRedis:
    """Redis in the process, for queue and view logic; `valkey` puts the real server in its place."""
    return put_fake_redis(monkeypatch)


def put_fake_redis(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeRedis:
    server = fakeredis.FakeServer()

    def connect(**_: object) -> fakeredis.FakeRedis:
        return fakeredis.FakeRedis(server=server)

    monkeypatch.setattr("repositories.base.connections.connect", connect)
    queue.connection.cache_clear()
    queue.impatient_connection.cache_clear()
    rate.connection.cache_clear()
    counters.connection.cache_clear()
    monkeypatch.setattr(rate, "_asked_again_at", 0.0)
    repo_lock.start_anew()
    return connect()


@pytest.fixture(scope="session")
def valkey_socket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    socket = tmp_path_factory.mktemp("valkey") / "valkey.sock"
    process = embedded.start(socket, persistent=False)
    yield socket
    process.terminate()
    process.wait(timeout=10)


@pytest.fixture
def valkey(valkey_socket: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """A real server, empty at the start of each test."""
    url = f"unix://{valkey_socket}"
    settings.REDIS_URL = url

    def connect(*, timeout: float = 5) -> redis.Redis:
        return redis.Redis.from_url(url, socket_timeout=timeout, **connections.OPTIONS)

    monkeypatch.setattr("repositories.base.connections.connect", connect)
    queue.connection.cache_clear()
    queue.impatient_connection.cache_clear()
    rate.connection.cache_clear()
    counters.connection.cache_clear()
    with connect() as client:
        client.flushall()
        yield client


@pytest.fixture
def git_host(tmp_path: Path, settings: Settings) -> Iterator[GitHost]:
    """A real git host that Docora may dial, with clones in a place of their own."""
    with GitHost(tmp_path / "host") as host:
        settings.GIT_HOSTS = (host.address,)
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
        settings.REPOS_BASE_PATH = tmp_path / "repos"
        settings.RETRY_BASE_DELAY = 0.01
        yield host


@pytest.fixture(scope="session")
def prepared_handbook(tmp_path_factory: pytest.TempPathFactory) -> BareRepository:
    """Three files in one commit; every `remote` is a copy of it."""
    repository = BareRepository(tmp_path_factory.mktemp("handbook") / "handbook.git")
    files: dict[str, str | bytes] = {
        "README.md": "# Handbook\n",
        "docs/start.md": "Start here.\n",
        "logo.png": b"\x89PNG\r\n\x00",
    }
    repository.commit(files)
    return repository


@pytest.fixture
def remote(git_host: GitHost, prepared_handbook: BareRepository) -> HostedRepository:
    """A public repository with three files."""
    return git_host.create("acme/handbook", copy_of=prepared_handbook)


@pytest.fixture
def hostile(settings: Settings, tmp_path: Path) -> Iterator[HostileHost]:
    """A git host that Docora may dial, and that answers what the test tells it to."""
    with hostile_host() as host:
        settings.GIT_HOSTS = (host.address,)
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
        settings.REPOS_BASE_PATH = tmp_path / "repos"
        yield host


@pytest.fixture
def alice() -> Iterator[Receiver]:
    with Receiver(webhook_key=ALICE_KEY) as receiver:
        yield receiver


@pytest.fixture
def bob() -> Iterator[Receiver]:
    with Receiver(webhook_key=BOB_KEY) as receiver:
        yield receiver


@pytest.fixture
def alice_app(db: None, alice: Receiver) -> App:
    return _onboarded("Alice's search", alice)


@pytest.fixture
def bob_app(db: None, bob: Receiver) -> App:
    return _onboarded("Bob's wiki", bob)


def _onboarded(name: str, receiver: Receiver) -> App:
    credentials = accounts.onboard(name, receiver.url, webhook_key=receiver.webhook_keys[0])
    receiver.app_id = credentials.app_id
    return App.objects.get(public_id=credentials.app_id)


@pytest.fixture
def alice_api(db: None, alice: Receiver) -> Api:
    return Api(accounts.onboard("Alice's search", alice.url, webhook_key=alice.webhook_keys[0]).bearer_token)


@pytest.fixture
def bob_api(db: None, bob: Receiver) -> Api:
    return Api(accounts.onboard("Bob's wiki", bob.url, webhook_key=bob.webhook_keys[0]).bearer_token)


@pytest.fixture
def work(transactional_db: None) -> Work:
    """Run every job that is queued, and those that they queue, in this process."""
    return run_jobs


@pytest.fixture(scope="session")
def prepared_watch(tmp_path_factory: pytest.TempPathFactory) -> PreparedWatch:
    return PreparedWatch(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def give_handbook(
    alice: Receiver, git_host: GitHost, remote: HostedRepository, work: Work, prepared_watch: PreparedWatch
) -> Callable[[App], Watch]:
    """Let an app of Alice's have the handbook."""
    return lambda app: prepared_watch.on(Stage(app, alice, git_host, remote), work)


@pytest.fixture
def watch(alice_app: App, give_handbook: Callable[[App], Watch]) -> Watch:
    """Alice has the handbook."""
    return give_handbook(alice_app)
