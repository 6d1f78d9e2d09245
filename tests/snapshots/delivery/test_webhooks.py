"""The webhook client on real sockets: which addresses it dials, and what it makes of strange answers."""

import gzip
import ipaddress
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pycurl
import pytest
from pytest_django import Settings

from docora.demo.receiver import Receiver, ReceiverFault
from repositories.base import outgoing
from repositories.models import App
from snapshots.delivery import _posting
from snapshots.delivery._posting import _options
from snapshots.delivery.webhooks import Answer, Message, WebhookClient

KEY = "a-key-of-sixteen-characters-or-more"
LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


def message(body: bytes = b"{}", number: int = 0) -> Message:
    return Message(event="create", id=f"msg_{number}", body=body)


def app_at(url: str, *, lanes: int = 1) -> App:
    return App(public_id="app_1", base_url=url, webhook_key=KEY, max_in_flight=lanes)


def post(url: str, *, body: bytes = b"{}", timeout: float = 5) -> Answer:
    with WebhookClient[Message](app_at(url), timeout=timeout) as client:
        return client.post(message(body))


@pytest.fixture(autouse=True)
def loopback_is_trusted(settings: Settings) -> None:
    settings.TRUSTED_NETWORKS = LOOPBACK


def resolve_to(monkeypatch: pytest.MonkeyPatch, place: str, addresses: str) -> None:
    """What libcurl finds for a name, given as `host:port`, from now on."""

    def options(*arguments: Any) -> dict[int, Any]:
        return {**real(*arguments), pycurl.RESOLVE: [f"{place}:{addresses}"]}

    real = _options
    monkeypatch.setattr(_posting, "_options", options)


@contextmanager
def server(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A server that does to each connection exactly what the test says."""
    connections: list[int] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            connections.append(1)
            with suppress(ConnectionError):  # the client may have had enough
                answer(self.request)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{serving.server_address[1]}"
        finally:
            serving.shutdown()
            thread.join()


def saying(*answers: bytes, read: bool = True) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        for each in answers:
            if read:
                connection.recv(1 << 16)
            connection.sendall(each)

    return answer


class TestAddresses:
    """The address that is dialled decides, at every connection, whatever its name or spelling."""

    @pytest.fixture(autouse=True)
    def nothing_is_trusted(self, settings: Settings) -> None:
        settings.TRUSTED_NETWORKS = ()

    @pytest.mark.parametrize(
        "host",
        [
            "127.0.0.1",
            "localhost",
            "0x7f.1",
            "0.0.0.0",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "[::ffff:a9fe:a9fe]",
            "[fd00::1]",
            "[fe80::1]",
            "[64:ff9b::7f00:1]",
            "[2002:7f00:1::]",
            "[2001:0:7f00:1::]",
            "169.254.169.254",
            "100.100.100.200",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "100.64.0.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
        ],
    )
    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_an_address_that_is_not_public_is_never_dialled(self, scheme: str, host: str) -> None:
        answer = post(f"{scheme}://{host}:9/hooks")
        assert answer.status is None
        assert answer.error_class == "forbidden-address"
        assert "DOCORA_TRUSTED_NETWORKS" in answer.error

    @pytest.mark.parametrize("host", ["localhost.", "2130706433", "0177.0.0.1", "127.1", "127.0.0.1.nip.io"])
    def test_a_strange_spelling_is_never_dialled(self, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Resolved to what it stands for, and refused then."""
        resolve_to(monkeypatch, f"{host}:9", "127.0.0.1")
        assert post(f"https://{host}:9/hooks").error_class == "forbidden-address"

    def test_plain_http_to_a_public_address_is_refused_with_a_reason(self) -> None:
        answer = post("http://93.184.216.34/hooks")
        assert answer.error_class == "forbidden-address"
        assert "https" in answer.error
        assert "DOCORA_TRUSTED_NETWORKS" in answer.error

    def test_a_trusted_network_is_the_exception(self, settings: Settings) -> None:
        settings.TRUSTED_NETWORKS = LOOPBACK
        with server(saying(b"HTTP/1.1 204 No Content\r\n\r\n")) as url:
            assert post(url).accepted

    def test_a_name_that_changes_its_mind_gains_nothing(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name points to a trusted address at first and to a private one when it is dialled again."""
        settings.TRUSTED_NETWORKS = LOOPBACK
        closing = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
        with server(saying(closing)) as url:
            name = url.replace("127.0.0.1", "rebinding.example.com")
            place = name.removeprefix("http://")
            resolve_to(monkeypatch, place, "127.0.0.1")
            assert post(name).accepted
            resolve_to(monkeypatch, place, "10.0.0.1")
            answer = post(name)
        assert answer.error_class == "forbidden-address"
        assert "10.0.0.1" in answer.error

    def test_of_several_addresses_the_allowed_one_is_dialled(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings.TRUSTED_NETWORKS = LOOPBACK
        with server(saying(b"HTTP/1.1 204 No Content\r\n\r\n")) as url:
            name = url.replace("127.0.0.1", "several.example.com")
            resolve_to(monkeypatch, name.removeprefix("http://"), "10.0.0.1,127.0.0.1")
            assert post(name).accepted

    def test_a_name_with_several_private_addresses_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        resolve_to(monkeypatch, "many.example.com:443", "10.0.0.1,10.0.0.2")
        assert post("https://many.example.com").error_class == "forbidden-address"

    def test_a_redirect_is_not_followed(self, settings: Settings) -> None:
        settings.TRUSTED_NETWORKS = LOOPBACK
        with server(
            saying(b"HTTP/1.1 307 Temporary\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")
        ) as url:
            answer = post(url)
        assert answer.status == 307
        assert "not followed" in answer.error

    def test_a_proxy_of_the_environment_is_ignored(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        settings.TRUSTED_NETWORKS = LOOPBACK
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        with server(saying(b"HTTP/1.1 204 No Content\r\n\r\n")) as url:
            assert post(url).accepted


class TestAnswers:
    @pytest.mark.parametrize(
        ("said", "error_class"),
        [
            (b"", "connection"),
            (b"nonsense\r\n\r\n", "protocol"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort", "connection"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "protocol"),
            (b"HTTP/1.1 99999 Much\r\n\r\n", "protocol"),
            (b"HTTP/1.1 2000 OK\r\n\r\n", "protocol"),
            (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "protocol"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "protocol"),
        ],
    )
    def test_what_is_not_http_is_no_acceptance(self, said: bytes, error_class: str) -> None:
        with server(saying(said)) as url:
            answer = post(url)
        assert not answer.accepted
        assert answer.error_class == error_class

    def test_nobody_listens(self) -> None:
        answer = post("http://127.0.0.1:1")
        assert (answer.error_class, answer.error) == ("connection", "connection refused by 127.0.0.1:1")

    def test_no_reason_is_a_name_of_python(self) -> None:
        for said in (b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"):
            with server(saying(said)) as url:
                assert not re.search(r"\w(Error|Exception)\b", post(url).error)

    def test_a_name_that_does_not_exist(self) -> None:
        answer = post("https://nowhere.invalid")
        assert answer.error_class == "dns"
        assert answer.error == "the name of nowhere.invalid cannot be resolved"

    def test_tls_where_there_is_none(self) -> None:
        with server(saying(b"HTTP/1.1 200 OK\r\n\r\n")) as url:
            answer = post(url.replace("http:", "https:"))
        assert answer.error_class in {"tls", "connection"}

    def test_a_url_that_cannot_be_dialled_is_a_failed_delivery(self) -> None:
        answer = post("http://127.0.0.1:99999")
        assert (answer.status, answer.error_class) == (None, "protocol")
        assert "http://127.0.0.1:99999" in answer.error

    @pytest.mark.parametrize("url", ["file:///etc", "ftp://127.0.0.1:9", "gopher://127.0.0.1:9"])
    def test_nothing_but_http_is_spoken(self, url: str) -> None:
        answer = post(url)
        assert (answer.status, answer.error_class) == (None, "protocol")
        assert re.search("protocol", answer.error, re.IGNORECASE)

    def test_informational_answers_are_skipped(self) -> None:
        said = (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 202 Accepted\r\n\r\n"
        )
        with server(saying(said)) as url:
            assert post(url).status == 202

    @pytest.mark.parametrize("name", [b"HTTP/", b"HTTP/x:1", b"HTTP/1.1 500 No: x"])
    def test_a_header_that_looks_like_a_status_is_a_header(self, name: bytes) -> None:
        with server(saying(b"HTTP/1.1 202 Accepted\r\n" + name + b": 1\r\nContent-Length: 0\r\n\r\n")) as url:
            assert post(url).status == 202

    def test_a_trailer_that_looks_like_a_status_is_no_acceptance(self) -> None:
        said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: HTTP/x\r\n\r\n0\r\nHTTP/x:1\r\n\r\n"
        with server(saying(said)) as url:
            assert post(url).error_class in {"", "protocol"}

    def test_a_change_of_protocol_is_no_acceptance(self) -> None:
        with server(saying(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n")) as url:
            assert not post(url, timeout=1).accepted

    def test_a_gzip_bomb_is_not_unpacked(self) -> None:
        bomb = gzip.compress(b"\0" * 50_000_000)
        head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(bomb)}\r\n\r\n".encode()
        with server(saying(head + bomb)) as url:
            answer = post(url)
        assert answer.accepted
        assert answer.text.startswith("\x1f")
        assert len(answer.text) <= 2048

    def test_an_answer_without_end_is_read_up_to_a_bound(self) -> None:
        def flood(connection: socket.socket) -> None:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                connection.sendall(b"x" * 65536)

        with server(flood) as url:
            answer = post(url, timeout=30)
        assert answer.accepted
        assert len(answer.text) == 2048

    def test_only_the_beginning_of_a_long_answer_is_kept_and_none_of_its_nuls(self) -> None:
        body = b"why\0not " * 500_000
        head = f"HTTP/1.1 500 No\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with server(saying(head + body)) as url:
            answer = post(url)
        assert answer.status == 500
        assert answer.text.startswith("whynot why")
        assert len(answer.text) <= 2048

    def test_an_endless_answer_ends_with_the_time(self) -> None:
        def drip(connection: socket.socket) -> None:
            connection.recv(1 << 16)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            over = threading.Event()
            while not over.wait(0.05):
                connection.sendall(b"1\r\nx\r\n")

        with server(drip) as url:
            answer = post(url, timeout=0.5)
        assert answer.timed_out
        assert (answer.error_class, answer.error) == ("timeout", "timed out after 0.5 s")

    def test_an_answer_before_the_body_is_read_counts(self) -> None:
        """As a proxy does that refuses by the length alone."""

        def refuse(connection: socket.socket) -> None:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass

        with server(refuse) as url:
            assert post(url, body=b"x" * 4_000_000).status == 413

    @pytest.mark.parametrize(
        ("header", "seconds"),
        [("120", 120), ("0", 0), ("9" * 30, 86400), ("²", None), ("soon", None), ("-5", None), ("", None)],
    )
    def test_retry_after(self, header: str, seconds: float | None) -> None:
        assert outgoing.seconds_of(header) == seconds

    def test_retry_after_as_a_date(self) -> None:
        assert outgoing.seconds_of("Wed, 21 Oct 2015 07:28:00 GMT") == 0
        assert outgoing.seconds_of("Mon, 01 Jan 99999999999999999999 00:00:00 GMT") is None
        assert outgoing.seconds_of("Wed, 21 Oct 2115 07:28:00 GMT") == 86400


class TestMany:
    @pytest.fixture
    def receiver(self) -> Iterator[Receiver]:
        with Receiver(webhook_key=KEY, app_id="app_1") as receiver:
            yield receiver

    def test_no_more_than_the_lanes_are_in_flight(self, receiver: Receiver) -> None:
        in_flight, most = [0], [0]
        judge = receiver._misbehave

        async def count(*arguments: Any) -> None:
            in_flight[0] += 1
            most[0] = max(most[0], in_flight[0])
            await judge(*arguments)
            in_flight[0] -= 1

        receiver._misbehave = count  # type: ignore[method-assign, assignment]
        with (
            receiver.faults.put(ReceiverFault(delay=0.02)),
            WebhookClient[Message](app_at(receiver.url, lanes=4), timeout=5) as client,
        ):
            for number in range(40):
                client.submit(message(number=number))
            answered = client.answers()
        assert len(answered) == 40
        assert most == [4]

    def test_connections_are_used_again_also_after_a_failure(self) -> None:
        opened: list[int] = []

        def answer(connection: socket.socket) -> None:
            opened.append(1)
            statuses = [b"500 No", b"200 OK", b"404 No", b"200 OK"]
            for status in statuses:
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 " + status + b"\r\nContent-Length: 3\r\n\r\nabc")

        with server(answer) as url, WebhookClient[Message](app_at(url), timeout=5) as client:
            statuses = [client.post(message()).status for _ in range(4)]
        assert statuses == [500, 200, 404, 200]
        assert opened == [1]

    def test_nothing_more_is_sent_before_a_refusal_is_looked_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also if another message was accepted at the same moment."""
        seen: list[bytes] = []

        def answer(connection: socket.socket) -> None:
            while request := connection.recv(1 << 16):
                seen.append(re.findall(rb"webhook-id: (\w+)", request)[0])
                connection.sendall(
                    b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % (b"422 No" if b"msg_0" in request else b"200 OK")
                )

        with server(answer) as url, WebhookClient[Message](app_at(url, lanes=2), timeout=5) as client:
            wait = client._poster.wait

            def both_at_once(_seconds: float) -> list[Any]:
                found: list[Any] = []
                while len(found) < 2:
                    found += wait(1)
                return sorted(found, key=lambda each: each[1].status, reverse=True)

            monkeypatch.setattr(client._poster, "wait", both_at_once)
            for number in range(4):
                client.submit(message(number=number))
            statuses = [answer.status for _, answer in client.answers()]
        assert statuses == [422, 200]
        assert sorted(seen) == [b"msg_0", b"msg_1"]

    def test_a_body_is_not_kept_once_it_is_answered(self) -> None:
        body = bytes(100_000)
        with (
            server(saying(b"HTTP/1.1 204 No Content\r\n\r\n")) as url,
            WebhookClient[Message](app_at(url), timeout=5) as client,
        ):
            before = sys.getrefcount(body)
            assert client.post(message(body)).accepted
            assert sys.getrefcount(body) == before

    def test_closed_connections_leave_no_open_files(self) -> None:
        files = len(list(Path("/proc/self/fd").iterdir())) if sys.platform == "linux" else 0
        with (
            server(saying(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")) as url,
            WebhookClient[Message](app_at(url), timeout=5) as client,
        ):
            for _ in range(30):
                assert client.post(message()).accepted
        if files:
            assert len(list(Path("/proc/self/fd").iterdir())) <= files + 5

    def test_what_was_dropped_is_not_sent(self, receiver: Receiver) -> None:
        with WebhookClient[Message](app_at(receiver.url), timeout=5) as client:
            client.submit(message())
            client.drop_waiting()
            assert client.answers() == []
            assert (client.unanswered, client.unanswered_bytes) == (0, 0)
        assert receiver.requests == []

    def test_leaving_does_not_wait_for_a_hanging_receiver(self, receiver: Receiver) -> None:
        with (
            receiver.faults.put(ReceiverFault(hang=True)),
            WebhookClient[Message](app_at(receiver.url, lanes=2), timeout=60) as client,
        ):
            client.submit(message())
            assert client.answers(patience=0.2) == []
            assert client.unanswered == 1

    def test_the_time_in_which_nobody_asks_for_answers_is_not_the_endpoints(self) -> None:
        """The time in which the run waits for a busy database does not count as the endpoint being slow."""
        with (
            Receiver(webhook_key=KEY, app_id="app_1") as receiver,
            WebhookClient[Message](app_at(receiver.url, lanes=4), timeout=1) as client,
            receiver.faults.put(ReceiverFault(delay=0.1)),
        ):
            for number in range(4):
                client.submit(message(number=number))
            assert client.answers(patience=0.05) == []
            time.sleep(1.5)
            answers = [answer for _, answer in client.answers()]
        assert [answer.error_class for answer in answers] == [""] * 4
        assert max(answer.milliseconds for answer in answers) < 900
