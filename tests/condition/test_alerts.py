"""Alerts: the operator is told once of what needs a person, and once when it is over."""

import base64
import hashlib
import hmac
import ipaddress
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import redis
from django.core import mail
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone
from pytest_django import Settings

from docora import condition
from docora.condition import alerts
from docora.management.commands import scheduler
from docora.models import Alert
from repositories import accounts
from repositories.base import connections as redis_connections
from repositories.base import disks, queue
from repositories.models import App, Repository
from tests.support.post_office import PostOffice
from tests.support.redis_away import redis_away
from tests.support.worker import put_worker

pytestmark = pytest.mark.django_db(transaction=True)

KEY = "the-operator-keeps-this-key"


class Inbox:
    """The operator's endpoint: what arrived, and with which status it answers."""

    def __init__(self) -> None:
        self.status = 204
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.arrived = threading.Event()
        self.goes_on = threading.Event()
        self.goes_on.set()
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.requests.append((self.path, dict(self.headers), body))
                inbox.arrived.set()
                inbox.goes_on.wait(30)
                self.send_response(inbox.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/T0?team=1"

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, _, body in self.requests]


@pytest.fixture
def inbox(settings: Settings) -> Iterator[Inbox]:
    inbox = Inbox()
    thread = threading.Thread(target=inbox.server.serve_forever, args=(0.01,))
    thread.start()
    settings.ALERT_WEBHOOK = inbox.url
    settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    settings.RETRY_BASE_DELAY = 0.001
    yield inbox
    inbox.goes_on.set()
    inbox.server.shutdown()
    inbox.server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def all_is_well(fake_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    condition._impatient_connection.cache_clear()
    monkeypatch.setattr(condition, "SETTLING", {})
    for name in queue.ALL:
        put_worker(name)


@pytest.fixture
def repository() -> Repository:
    return Repository.objects.create(url="https://git.example/a/b", owner="a", name="b", clone_key="a/b")


def open_circuit(repository: Repository) -> None:
    until = timezone.now() + timedelta(minutes=30)
    Repository.objects.filter(pk=repository.pk).update(
        circuit_open_until=until, last_error="The host does not answer.", last_error_code="host-unavailable"
    )


def close_circuit(repository: Repository) -> None:
    Repository.objects.filter(pk=repository.pk).update(circuit_open_until=None)


def lose_workers(name: str) -> None:
    queue.connection().delete(f"rq:workers:{name}")


def take_redis_away(monkeypatch: pytest.MonkeyPatch) -> None:
    away = redis_away()
    monkeypatch.setattr(redis_connections, "connect", lambda **_: away)
    condition._impatient_connection.cache_clear()
    queue.connection.cache_clear()


def set_disk(percent: float) -> None:
    queue.connection().hset(disks._KEY, "host-1", json.dumps([percent, 100, timezone.now().timestamp()]))


def kinds(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["kind"], row["subject"]) for row in rows]


def test_an_open_circuit_is_told_once_and_once_that_it_is_over(inbox: Inbox, repository: Repository) -> None:
    alerts.check()
    assert inbox.requests == []
    open_circuit(repository)
    for _ in range(3):
        alerts.check()
    (message,) = inbox.messages
    assert kinds(message["began"]) == [("circuit-open", "a/b")]
    assert message["began"][0]["reason"] == "The host does not answer."
    assert message["text"].startswith("Docora: a/b: circuit open\n")
    close_circuit(repository)
    for _ in range(3):
        alerts.check()
    assert len(inbox.requests) == 2
    assert kinds(inbox.messages[1]["over"]) == [("circuit-open", "a/b")]
    assert inbox.messages[1]["began"] == []
    assert not Alert.objects.exists()
    open_circuit(repository)
    alerts.check()
    assert kinds(inbox.messages[2]["began"]) == [("circuit-open", "a/b")], "the next time is told again"


def test_every_kind_is_told(inbox: Inbox, alice_app: App, repository: Repository) -> None:
    accounts.disable_app(alice_app, "The endpoint answered 410 Gone.")
    open_circuit(repository)
    lose_workers("deliveries-slow")
    set_disk(4)
    alerts.check()
    (message,) = inbox.messages
    assert set(kinds(message["began"])) == {
        ("circuit-open", "a/b"),
        ("app-disabled", "Alice's search"),
        ("queue-untended", "deliveries-slow"),
        ("disk-low", "host-1"),
    }
    assert all(row["hint"] for row in message["began"])
    accounts.enable_app(alice_app)
    close_circuit(repository)
    put_worker("deliveries-slow")
    set_disk(50)
    alerts.check()
    assert kinds(inbox.messages[1]["over"]) == kinds(message["began"])
    assert not Alert.objects.exists()


def test_a_worker_that_was_killed_does_not_count(inbox: Inbox) -> None:
    queue.connection().delete("rq:worker:somebody")
    alerts.check()
    assert {subject for _, subject in kinds(inbox.messages[0]["began"])} == set(queue.ALL)


def test_a_disk_that_wavers_around_its_limit_is_told_once(inbox: Inbox) -> None:
    for percent in (9.9, 10.5, 9.9, 11.9):
        set_disk(percent)
        alerts.check()
    assert len(inbox.requests) == 1
    set_disk(12.1)
    alerts.check()
    assert kinds(inbox.messages[1]["over"]) == [("disk-low", "host-1")]
    set_disk(10.5)
    alerts.check()
    assert len(inbox.requests) == 2


def test_what_is_away_for_a_moment_is_not_told(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(condition, "SETTLING", {"queue-untended": 60})
    lose_workers("snapshots")
    alerts.check()
    put_worker("snapshots")
    alerts.check()
    assert inbox.requests == []
    assert not Alert.objects.exists()
    lose_workers("snapshots")
    alerts.check()
    Alert.objects.update(due_at=timezone.now())
    alerts.check()
    put_worker("snapshots")
    alerts.check()
    lose_workers("snapshots")
    alerts.check()
    Alert.objects.update(due_at=timezone.now())
    alerts.check()
    assert len(inbox.requests) == 1, "neither the end of a moment nor what came back"


def test_an_endpoint_that_fails_is_tried_again_and_told_once(inbox: Inbox, repository: Repository) -> None:
    inbox.status = 503
    open_circuit(repository)
    alerts.check()
    inbox.status = 204
    Alert.objects.update(due_at=timezone.now())
    for _ in range(3):
        alerts.check()
    assert len(inbox.requests) == 2
    assert len({headers["webhook-id"] for _, headers, _ in inbox.requests}) == 1, "the attempts are one message"


def test_a_dead_endpoint_is_not_asked_at_every_tick(inbox: Inbox, repository: Repository, settings: Settings) -> None:
    settings.RETRY_BASE_DELAY = 100
    inbox.status = 503
    open_circuit(repository)
    for _ in range(3):
        alerts.check()
    assert len(inbox.requests) == 1
    assert Alert.objects.get().due_at > timezone.now() + timedelta(seconds=90)


def test_of_several_schedulers_one_tells_it(inbox: Inbox, repository: Repository) -> None:
    open_circuit(repository)
    inbox.goes_on.clear()
    first = threading.Thread(target=_look_in_a_thread)
    first.start()
    assert inbox.arrived.wait(20)
    for _ in range(3):
        alerts.check()  # while the first one waits for the answer
    inbox.goes_on.set()
    first.join()
    alerts.check()
    assert len(inbox.requests) == 1


def _look_in_a_thread() -> None:
    try:
        alerts.check()
    finally:
        connections.close_all()


def test_what_a_killed_scheduler_was_telling_is_told_by_another(inbox: Inbox, repository: Repository) -> None:
    open_circuit(repository)
    inbox.status = 503
    alerts.check()
    inbox.status = 204
    Alert.objects.update(due_at=timezone.now(), claim="dead", claimed_until=timezone.now() + timedelta(seconds=60))
    alerts.check()
    assert len(inbox.requests) == 1
    Alert.objects.update(claimed_until=timezone.now() - timedelta(seconds=1))
    alerts.check()
    assert len(inbox.requests) == 2
    assert Alert.objects.get().told_at


def test_many_at_once_are_one_message(inbox: Inbox, repository: Repository) -> None:
    rows = [Repository(url=f"https://git.example/a/{n}", owner="a", name=str(n), clone_key=f"a/{n}") for n in range(60)]
    Repository.objects.bulk_create(rows)
    Repository.objects.exclude(pk=repository.pk).update(circuit_open_until=timezone.now())
    alerts.check()
    alerts.check()
    (message,) = inbox.messages
    assert (len(message["began"]), message["more"]) == (50, 10)
    assert message["text"].startswith("Docora: 60 new\n")


def test_it_is_signed_and_goes_to_the_url_as_it_is(inbox: Inbox, repository: Repository, settings: Settings) -> None:
    settings.ALERT_WEBHOOK_KEY = KEY
    open_circuit(repository)
    alerts.check()
    ((path, headers, body),) = inbox.requests
    assert path == "/hooks/T0?team=1"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(KEY.encode(), signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


def test_without_a_key_it_is_sent_unsigned(inbox: Inbox, repository: Repository) -> None:
    open_circuit(repository)
    alerts.check()
    ((_, headers, _),) = inbox.requests
    assert "webhook-signature" not in headers
    assert "X-Docora-Signature" not in headers


def test_a_private_address_is_not_dialled(
    inbox: Inbox, repository: Repository, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.TRUSTED_NETWORKS = ()
    open_circuit(repository)
    alerts.check()
    assert inbox.requests == []
    assert "127.0.0.1 is not a public address" in caplog.text
    assert Alert.objects.get().attempts == 1


def test_by_email_it_is_told_apart_from_the_webhook(inbox: Inbox, repository: Repository, settings: Settings) -> None:
    settings.ALERT_EMAIL = ("ann@example.com", "bob@example.com")
    inbox.status = 503
    open_circuit(repository)
    alerts.check()
    alerts.check()
    (letter,) = mail.outbox
    assert letter.subject == "Docora: a/b: circuit open"
    assert letter.to == ["ann@example.com", "bob@example.com"]
    assert "The host does not answer." in letter.body
    close_circuit(repository)
    alerts.check()
    assert mail.outbox[1].subject == "Docora: a/b: circuit open, over"
    assert [row["over"] for row in inbox.messages if row["over"]] == [], "of what was not told no end is told"


@pytest.fixture
def post_office(settings: Settings) -> Iterator[PostOffice]:
    with PostOffice() as office:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = office.address
        settings.DEFAULT_FROM_EMAIL = "docora@example.com"
        settings.ALERT_EMAIL = ("ann@example.com", "bob@example.com")
        settings.RETRY_BASE_DELAY = 0.001
        yield office


def test_letters_go_to_a_real_server_once_and_once_that_it_is_over(
    post_office: PostOffice, repository: Repository
) -> None:
    Repository.objects.update(name="b\r\nBcc: eve@example.com")
    open_circuit(repository)
    for _ in range(3):
        alerts.check()
    (letter,) = post_office.letters
    assert (letter.sender, letter.recipients) == ("docora@example.com", ["ann@example.com", "bob@example.com"])
    assert letter.content["Subject"] == "Docora: a/b Bcc: eve@example.com: circuit open"
    assert letter.content["Bcc"] is None
    assert "The host does not answer." in letter.content.get_content()
    close_circuit(repository)
    for _ in range(3):
        alerts.check()
    assert [letter.content["Subject"].rpartition(": ")[2] for letter in post_office.letters] == [
        "circuit open",
        "circuit open, over",
    ]


@pytest.mark.parametrize("refused", ["MAIL", "RCPT", "DATA"])
def test_a_letter_that_the_server_refuses_is_sent_again(
    post_office: PostOffice, repository: Repository, caplog: pytest.LogCaptureFixture, refused: str
) -> None:
    post_office.refuses = refused
    open_circuit(repository)
    alerts.check()
    assert post_office.letters == []
    assert "An alert by email failed (attempt 1)" in caplog.text
    post_office.refuses = ""
    Alert.objects.update(due_at=timezone.now())
    for _ in range(2):
        alerts.check()
    assert len(post_office.letters) == 1


def test_a_server_that_is_away_does_not_hold_up_the_tick(
    post_office: PostOffice, repository: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    post_office.close()
    open_circuit(repository)
    alerts.check()
    assert "An alert by email failed (attempt 1)" in caplog.text
    assert "refused" in caplog.text
    assert Alert.objects.get().told_at is None


def test_without_redis_that_is_told_and_nothing_else_is_called_over(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_workers("snapshots")
    alerts.check()
    take_redis_away(monkeypatch)
    alerts.check()
    assert kinds(inbox.messages[1]["began"]) == [("redis-away", "Redis")]
    assert inbox.messages[1]["over"] == []


def test_where_nobody_is_to_be_told_nothing_is_kept(repository: Repository) -> None:
    open_circuit(repository)
    alerts.check()
    assert not Alert.objects.exists()


def test_the_scheduler_survives_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(alerts, "check", lambda: 1 / 0)
    alerts.check_without_raising()
    assert "ZeroDivisionError" in caplog.text


def test_a_tick_from_cron_tells_it_once_and_once_that_it_is_over(inbox: Inbox, repository: Repository) -> None:
    open_circuit(repository)
    for _ in range(3):
        call_command("tick")
    close_circuit(repository)
    for _ in range(3):
        call_command("tick")
    began, over = inbox.messages
    assert kinds(began["began"]) == kinds(over["over"]) == [("circuit-open", "a/b")]


def test_a_tick_from_cron_tells_that_redis_is_away(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> None:
    take_redis_away(monkeypatch)
    with pytest.raises(CommandError, match="Redis"):
        call_command("tick")
    assert kinds(inbox.messages[0]["began"]) == [("redis-away", "Redis")]


def test_the_scheduler_looks_before_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def tick(_looks: object) -> None:
        done.append("tick")
        if len(done) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(alerts, "check", lambda: done.append("alerts"))
    monkeypatch.setattr(scheduler, "_tick", tick)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        scheduler.Command().handle()
    assert done == ["alerts", "tick", "alerts", "tick"]
