"""A web process whose requests wait for hanging endpoints and git hosts goes on answering the others."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from docora.demo.githost import GitFault, GitHost
from docora.demo.receiver import Receiver, ReceiverFault
from tests.support.service import ROOT, Service, wait_until

# One worker of pytest-xdist runs them all, so that `stage` is set up once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("busy_web")]

APPS = 100


class Web:
    """One gunicorn process with sixteen threads, as an operator starts it by hand."""

    def __init__(self, service: Service) -> None:
        self.port, self._environment = service.port, service.environment
        self.log = service.data / "web.txt"

    def start(self) -> "subprocess.Popen[bytes]":
        words = (
            "-m gunicorn docora.wsgi -c python:docora.processes.web --no-control-socket --threads 16"
            f" --bind 127.0.0.1:{self.port} --access-logfile -"
            " --logger-class docora.processes.access_log.GunicornLog"
        )
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *words.split()], cwd=ROOT, env=self._environment, stdout=log, stderr=log
            )
        wait_until(self._answers, "the web server starts")
        return process

    def _answers(self) -> bool:
        try:
            return self.call("GET", "/health")[0] == 200
        except OSError:
            return False

    def call(self, method: str, path: str, token: str = "", body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()


@dataclass(frozen=True)
class Stage:
    web: Web
    git_host: GitHost
    receiver: Receiver
    url: str
    tokens: list[str]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, valkey_socket: Path) -> Iterator[Stage]:
    """A hundred apps with one endpoint, a repository, and the web server."""
    folder = tmp_path_factory.mktemp("web")
    with GitHost(folder / "host") as git_host, Receiver() as receiver:
        remote = git_host.create("acme/handbook")
        remote.commit({"README.md": "# Handbook"})
        service = Service(
            REDIS_URL=f"unix://{valkey_socket}",
            DOCORA_GIT_HOSTS=git_host.address,
            DOCORA_TRUSTED_NETWORKS="127.0.0.0/8",
            # Nothing that hangs ends by itself while the test looks.
            DOCORA_NOTICE_TIMEOUT="600",
            DOCORA_GIT_ASK_TIMEOUT="600",
        ).prepare()
        script = (
            "from repositories.accounts import onboard;"
            f"print(*[onboard(f'App {{n}}', '{receiver.url}').bearer_token for n in range({APPS})])"
        )
        tokens = service.manage("shell", "--no-imports", "-v0", "-c", script).stdout.split()
        web = Web(service)
        process = web.start()
        yield Stage(web, git_host, receiver, remote.url, tokens)
        process.terminate()
        process.wait(timeout=60)
        service.close()


class Crowd:
    """Many requests at once, each in a thread."""

    def __init__(self, web: Web, requests: list[tuple[str, str, str, Any]]) -> None:
        self.codes: Counter[str] = Counter()
        self._guard = threading.Lock()
        self._web = web
        self.threads = [threading.Thread(target=self._send, args=request) for request in requests]
        for thread in self.threads:
            thread.start()

    def _send(self, *request: Any) -> None:
        status, body = self._web.call(*request)
        with self._guard:
            self.codes[body.get("code", str(status))] += 1

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


def test_health_answers_beside_a_hundred_calls_that_hang(stage: Stage) -> None:
    web, tokens = stage.web, stage.tokens
    with (
        stage.receiver.faults.put(ReceiverFault(events=("ping",), hang=True)),
        stage.git_host.faults.put(GitFault(hang=True)),
    ):
        pings = Crowd(web, [("POST", "/api/ping", token, None) for token in tokens[:50]])
        wait_until(lambda: pings.codes["busy"] == 38, "pings beyond the seats are refused")
        body = {"github_url": stage.url}
        watches = Crowd(web, [("POST", "/api/repositories", token, body) for token in tokens[50:]])
        wait_until(lambda: watches.codes["busy"] == 50, "and so is all else that would dial")

        assert web.call("GET", "/health")[0] == 200
        assert web.call("GET", "/api/app", tokens[0])[0] == 200
        assert sum(thread.is_alive() for thread in pings.threads) == 12
    pings.join()
    watches.join()
    assert pings.codes == {"busy": 38, "200": 12}


def test_health_answers_beside_a_slow_git_host(stage: Stage) -> None:
    web, tokens, body = stage.web, stage.tokens, {"github_url": stage.url}
    with stage.git_host.faults.put(GitFault(hang=True)):
        one_app = Crowd(web, [("POST", "/api/repositories", tokens[0], body) for _ in range(20)])
        wait_until(lambda: one_app.codes["too-many-at-once"] == 14, "one app gets half of the seats")
        others = Crowd(web, [("POST", "/api/repositories", token, body) for token in tokens[1:81]])
        wait_until(lambda: others.codes["busy"] == 74, "the others share the other half")
        assert web.call("GET", "/health")[0] == 200
    one_app.join()
    others.join()
    assert (one_app.codes["201"], others.codes["201"]) == (6, 6)


def test_one_app_has_one_ping_under_way(stage: Stage) -> None:
    with stage.receiver.faults.put(ReceiverFault(events=("ping",), hang=True)):
        pings = Crowd(stage.web, [("POST", "/api/ping", stage.tokens[0], None) for _ in range(40)])
        wait_until(lambda: pings.codes["too-many-at-once"] == 39, "all but one are refused")
        assert stage.web.call("GET", "/health")[0] == 200
    pings.join()
    assert pings.codes == {"too-many-at-once": 39, "200": 1}


def test_the_connection_of_a_hook_is_closed_and_that_of_another_request_is_not(stage: Stage) -> None:
    kept = {}
    for method, path in (("POST", "/hooks/hook_unknown"), ("GET", "/health")):
        connection = http.client.HTTPConnection("127.0.0.1", stage.web.port, timeout=60)
        connection.request(method, path)
        answer = connection.getresponse()
        answer.read()
        kept[path] = not answer.will_close
        connection.close()
    assert kept == {"/hooks/hook_unknown": False, "/health": True}


def test_health_answers_beside_clients_that_send_nothing_or_do_not_close(stage: Stage) -> None:
    closed_by_us = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    half = b"POST /api/repositories HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as clients:
        for request in (closed_by_us, b"neither a method nor a path\r\n\r\n", b"", half) * 20:
            client = clients.enter_context(socket.create_connection(("127.0.0.1", stage.web.port)))
            client.sendall(request)
        probe = http.client.HTTPConnection("127.0.0.1", stage.web.port, timeout=5)
        probe.request("GET", "/health")
        answer = probe.getresponse()
        assert (answer.status, answer.getheader("Server")) == (200, "Docora")
        probe.close()


def test_what_is_no_request_is_a_line_of_the_log_and_no_stack(stage: Stage) -> None:
    for request in (b"neither a method nor a path\r\n\r\n", b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", stage.web.port), timeout=60) as client:
            client.sendall(request)
            assert b" 400 " in client.recv(100)
    assert "Traceback" not in stage.web.log.read_text()
    assert "UNKNOWN / 400" in stage.web.log.read_text()


def test_a_client_sees_the_answer_to_a_body_that_nobody_reads(stage: Stage) -> None:
    with socket.create_connection(("127.0.0.1", stage.web.port), timeout=60) as client:
        length = 26 << 20
        client.sendall(f"POST /hooks/any HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {length}\r\n\r\n".encode())
        client.sendall(b"." * length)
        assert client.recv(12) == b"HTTP/1.1 413"
