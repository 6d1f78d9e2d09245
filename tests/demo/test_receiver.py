"""The receiver of the cast, which notices what is wrong, and the receivers that are documented."""

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from docora.demo.mirror import Mirror
from docora.demo.receiver import Receiver, ReceiverFault
from docora.demo.signatures import docora_signature, standard_signature, stringify
from snapshots.digests import of_files
from tests.support.service import free_port, wait_until

KEY = "a webhook key of the cast"
DOCUMENTATION = Path(__file__).parent.parent.parent / "docs" / "receivers.md"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(webhook_key=KEY) as receiver:
        yield receiver


def file_event(path: str, content: bytes, **more: Any) -> dict[str, Any]:
    """The payload of a create or update, as the wire format has it."""
    text = {"content": content.decode()}
    file = {"path": path, "sha": hashlib.sha256(content).hexdigest(), "size": len(content)} | text
    return payload(file | more.pop("file", {}), **more)


def deletion(path: str, content: bytes) -> dict[str, Any]:
    return payload({"path": path, "sha": hashlib.sha256(content).hexdigest()})


def payload(file: dict[str, Any], **more: Any) -> dict[str, Any]:
    repository = {
        "repository_id": "repo_1",
        "github_url": "http://x/ada/notes",
        "owner": "ada",
        "name": "notes",
    }
    return {"repository": repository, "file": file, **more, "commit_sha": "c" * 40, "timestamp": "now"}


def headers_for(body: bytes, *, key: str = KEY, message_id: str | None = None) -> dict[str, str]:
    now, message_id = str(int(time.time())), message_id or f"msg_{uuid.uuid4().hex}"
    return {
        "Content-Type": "application/json",
        "X-Docora-App-Id": "app_1",
        "X-Docora-Timestamp": now,
        "X-Docora-Signature": docora_signature(key, now, body),
        "webhook-id": message_id,
        "webhook-timestamp": now,
        "webhook-signature": standard_signature(key, message_id, now, body),
    }


def post(receiver: Receiver, event: str, body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(receiver.url.removeprefix("http://"), timeout=10)
    try:
        connection.request("POST", f"/{event}", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def deliver(receiver: Receiver, event: str, message: dict[str, Any], **how: Any) -> int:
    body = stringify(message)
    return post(receiver, event, body, headers_for(body, **how))


class TestReceiver:
    def test_it_keeps_what_a_client_would(self, receiver: Receiver) -> None:
        first, second = b"one", "zwei\u2028\x7f 🎉".encode()
        assert deliver(receiver, "create", file_event("a", first)) == 200
        previous = hashlib.sha256(first).hexdigest()
        assert deliver(receiver, "update", file_event("a", second, previous_sha=previous)) == 200
        assert receiver.files == {"repo_1": {"a": second}}
        assert deliver(receiver, "delete", deletion("a", second)) == 200
        assert receiver.files == {"repo_1": {}}
        assert receiver.problems == []
        assert [(r.event, r.path, r.status) for r in receiver.requests] == [
            ("create", "a", 200),
            ("update", "a", 200),
            ("delete", "a", 200),
        ]

    def test_a_wrong_key_is_refused(self, receiver: Receiver) -> None:
        assert deliver(receiver, "create", file_event("a", b"1"), key="another key altogether") == 401
        assert receiver.files == {}
        assert "X-Docora-Signature does not match the body" in receiver.problems[0]
        assert "webhook-signature does not match the body" in receiver.problems[1]

    def test_each_key_of_a_rotation_is_accepted(self, receiver: Receiver) -> None:
        receiver.webhook_keys = (KEY, "the key that follows")
        assert deliver(receiver, "create", file_event("a", b"1")) == 200
        assert deliver(receiver, "create", file_event("b", b"1"), key="the key that follows") == 200

    def test_a_changed_body_is_refused(self, receiver: Receiver) -> None:
        body = stringify(file_event("a", b"1"))
        assert post(receiver, "create", body.replace(b'"a"', b'"b"'), headers_for(body)) == 401

    @pytest.mark.parametrize("style", [{"separators": (", ", ": ")}, {"ensure_ascii": True}])
    def test_a_body_that_javascript_would_print_otherwise_is_refused(
        self, receiver: Receiver, style: dict[str, Any]
    ) -> None:
        options: dict[str, Any] = {"ensure_ascii": False, "separators": (",", ":")} | style
        body = json.dumps(file_event("é", b"1"), **options).encode()
        assert post(receiver, "create", body, headers_for(body)) == 401
        assert "rebuilt by JSON.stringify" in receiver.problems[0]

    @pytest.mark.parametrize("header", ["X-Docora-Timestamp", "webhook-timestamp"])
    def test_an_old_message_is_refused(self, receiver: Receiver, header: str) -> None:
        body = stringify(file_event("a", b"1"))
        assert post(receiver, "create", body, headers_for(body) | {header: "1000000000"}) == 401
        assert "not about now" in receiver.problems[0]

    def test_another_apps_message_is_refused(self, receiver: Receiver) -> None:
        receiver.app_id = "app_2"
        assert deliver(receiver, "create", file_event("a", b"1")) == 401
        assert "X-Docora-App-Id is 'app_1'" in receiver.problems[0]

    @pytest.mark.parametrize(
        ("event", "message", "problem"),
        [
            (
                "create",
                file_event("new", b"1", file={"sha": "0" * 64}),
                "sha is not the SHA-256 of the content",
            ),
            ("create", file_event("new", b"1", file={"size": 2}), "size is 2, the content has 1 bytes"),
            ("create", file_event("known", b"1"), "the path is already there"),
            ("create", file_event("new", b"#", file={"content_encoding": "base64"}), "cannot be decoded"),
            ("create", file_event("a", b"", file={"path_base64": "/w=="}), "does not fit path_base64"),
            ("create", {"file": {}}, "not as agreed"),
            ("create", {"file": [], "repository": "x"}, "not as agreed"),
            ("update", file_event("new", b"1", previous_sha="0" * 64), "the path is not known"),
            ("update", file_event("known", b"1", previous_sha="0" * 64), "the sha of what was there"),
            ("delete", deletion("new", b"1"), "the path is not known"),
            ("delete", deletion("known", b"1"), "the sha of what was there"),
        ],
    )
    def test_it_notices_what_breaks_the_contract(
        self, receiver: Receiver, event: str, message: dict[str, Any], problem: str
    ) -> None:
        deliver(receiver, "create", file_event("known", b"0"))
        assert receiver.problems == []
        assert deliver(receiver, event, message) == 200
        assert len(receiver.problems) == 1
        assert problem in receiver.problems[0]

    def test_it_notices_a_message_that_comes_again(self, receiver: Receiver) -> None:
        message = file_event("a", b"1")
        deliver(receiver, "create", message, message_id="msg_1")
        deliver(receiver, "delete", deletion("a", b"1"), message_id="msg_2")
        deliver(receiver, "create", message, message_id="msg_1")
        assert receiver.problems == ["create 'a': message msg_1 came again after it was acknowledged"]

    def test_repeats_can_be_allowed(self, receiver: Receiver) -> None:
        receiver.mirror.repeats_are_allowed = True
        for _ in range(2):
            deliver(receiver, "create", file_event("a", b"1"), message_id="msg_1")
        assert receiver.problems == []

    def test_a_watch_that_starts_over_is_no_repeat(self, receiver: Receiver) -> None:
        deliver(receiver, "create", file_event("a", b"1"))
        receiver.mirror.forget("repo_1")
        deliver(receiver, "create", file_event("a", b"1"))
        assert receiver.problems == []

    def test_a_path_that_is_not_utf8_is_known_by_its_bytes(self, receiver: Receiver) -> None:
        exact = {"path_base64": base64.b64encode(b"caf\xe9 \xc3\xa9").decode()}
        assert deliver(receiver, "create", file_event("caf%E9 é", b"1", file=exact)) == 200
        assert receiver.files["repo_1"] == {b"caf\xe9 \xc3\xa9".decode(errors="surrogateescape"): b"1"}
        assert receiver.problems == []

    def test_pieces_become_one_file(self, receiver: Receiver) -> None:
        content = os.urandom(100)
        assert send_in_pieces(receiver, content, order=[0, 1, 2]) == [200, 200, 200]
        assert receiver.files["repo_1"] == {"blob": content}
        assert receiver.problems == []

    @pytest.mark.parametrize("order", [[1, 0, 2], [0, 0, 1], [0, 2]])
    def test_it_notices_pieces_out_of_order(self, receiver: Receiver, order: list[int]) -> None:
        send_in_pieces(receiver, os.urandom(100), order=order)
        assert "came after" in receiver.problems[0]

    def test_a_failed_transfer_starts_again_under_another_id(self, receiver: Receiver) -> None:
        content = os.urandom(100)
        send_in_pieces(receiver, content, order=[0])
        with receiver.faults.put(ReceiverFault(status=500, times=1)):
            assert send_in_pieces(receiver, content, order=[0]) == [500]
        send_in_pieces(receiver, content, order=[0, 1, 2])
        assert receiver.problems == []

    def test_it_fails_for_one_path_as_often_as_it_is_told(self, receiver: Receiver) -> None:
        receiver.faults.put(ReceiverFault(events={"create"}, path="a", status=503, times=2))
        statuses = [deliver(receiver, "create", file_event(path, b"1")) for path in ("b", "a", "a", "a")]
        assert statuses == [200, 503, 503, 200]
        assert receiver.problems == []

    def test_a_lost_answer_allows_a_repeat(self, receiver: Receiver) -> None:
        with (
            receiver.faults.put(ReceiverFault(reset=True, after_applying=True)),
            pytest.raises(ConnectionError),
        ):
            deliver(receiver, "create", file_event("a", b"1"), message_id="msg_1")
        assert receiver.files["repo_1"] == {"a": b"1"}
        assert deliver(receiver, "create", file_event("a", b"1"), message_id="msg_1") == 200
        assert receiver.problems == []

    def test_a_reset_takes_nothing_in(self, receiver: Receiver) -> None:
        with receiver.faults.put(ReceiverFault(reset=True)), pytest.raises(ConnectionError):
            deliver(receiver, "create", file_event("a", b"1"))
        assert receiver.files == {}

    def test_it_can_hang_be_late_and_read_slowly(self, receiver: Receiver) -> None:
        started = time.monotonic()
        receiver.faults.put(ReceiverFault(delay=0.2, times=1))
        assert deliver(receiver, "create", file_event("late", b"1")) == 200
        receiver.read_bytes_per_second = 1000
        assert deliver(receiver, "create", file_event("slow", b"x" * 500)) == 200
        assert time.monotonic() - started > 0.7
        with ThreadPoolExecutor(1) as pool:
            with receiver.faults.put(ReceiverFault(hang=True)):
                sent = pool.submit(deliver, receiver, "create", file_event("hung", b"1"))
                receiver.wait_until(lambda: True)
                time.sleep(0.2)
                assert not sent.done()
            assert sent.result() == 200

    @pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"file": 1}'])
    def test_nonsense_is_refused(self, receiver: Receiver, body: bytes) -> None:
        assert post(receiver, "create", body, {}) == 401

    def test_what_is_no_webhook_is_noticed(self, receiver: Receiver) -> None:
        assert post(receiver, "nothing", b"", {}) == 404
        assert receiver.problems == ["POST /nothing is not a webhook"]

    def test_a_notice_is_kept(self, receiver: Receiver) -> None:
        assert deliver(receiver, "sync_failed", {"event": "sync_failed"}) == 200
        assert receiver.mirror.notices == [{"event": "sync_failed"}]

    def test_waiting_ends_with_the_condition_or_the_patience(self, receiver: Receiver) -> None:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(receiver.wait_until, lambda: bool(receiver.files), seconds=10)
            deliver(receiver, "create", file_event("a", b"1"))
            waiting.result()
        with pytest.raises(TimeoutError):
            receiver.wait_until(lambda: False, seconds=0.05)

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_it_runs_by_itself_and_prints_each_event(self, number: signal.Signals) -> None:
        command = [sys.executable, "-m", "docora.demo.receiver", "--port", "0"]
        with running(command) as (process, output):
            client = Receiver(port=int(output.readline().rpartition(":")[2]))
            deliver(client, "create", file_event("README.md", b"1"))
            deliver(client, "create", file_event("LICENSE", b"1"), key="another key altogether")
            lines = [output.readline() for _ in range(2)]
            process.send_signal(number)
            assert process.wait(timeout=10) == 0
        assert lines[0] == f"create      ada/notes README.md (1 bytes) at {'c' * 10} answered 200\n"
        assert "LICENSE" in lines[1]
        assert "answered 401 X-Docora-Signature does not match the body" in lines[1]


class TestDocumentedReceivers:
    """docs/receivers.md is read by people who copy from it."""

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("language", "command"), [("python", [sys.executable, "-c"]), ("js", ["node", "--input-type=module", "-e"])]
    )
    def test_it_believes_docora_and_nobody_else(self, language: str, command: list[str]) -> None:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        port = free_port()
        client = Receiver(port=port)
        message = file_event("docs/caf\u00e9.md", b"1")
        with running([*command, example(language)], PORT=str(port)) as (_, output):
            wait_until(lambda: listens(port))
            assert deliver(client, "create", message) == 204
            assert output.readline() == "create docs/caf\u00e9.md\n"
            assert deliver(client, "create", message, key="another key altogether") == 401
            body = stringify(message)
            assert post(client, "create", body, headers_for(body) | {"X-Docora-Timestamp": "1000000000"}) == 401
            assert post(client, "create", body, {}) == 401

    def test_a_digest_that_is_not_that_of_the_files_is_a_problem(self) -> None:
        message = json.loads(example("json", 1))
        mirror = Mirror()
        mirror.files = {message["repository"]["repository_id"]: {"docs/start.md": b"damaged"}}
        mirror.apply("sync_complete", message)
        assert [problem.split(" is not")[0] for problem in mirror.problems] == [
            f"sync_complete: digest {message['digest']}"
        ]

    def test_the_examples_of_messages_are_true(self) -> None:
        message = json.loads(example("json"))
        mirror = Mirror()
        mirror.files = {message["repository"]["repository_id"]: {"docs/start.md": b""}}
        mirror.apply("update", message)
        mirror.apply("sync_complete", json.loads(example("json", 1)))
        assert mirror.problems == []

    @pytest.mark.parametrize(
        ("language", "command", "call"),
        [
            (
                "python",
                [sys.executable, "-c"],
                "import base64, json, sys\nprint(digest({base64.b64decode(p): s for p, s in json.load(sys.stdin)}))",
            ),
            (
                "js",
                ["node", "--input-type=module", "-e"],
                "import { readFileSync } from 'node:fs';\n"
                "const files = JSON.parse(readFileSync(0)).map(([p, s]) => [Buffer.from(p, 'base64'), s]);\n"
                "console.log(digest(files));",
            ),
        ],
    )
    def test_the_digest_is_computed_as_docora_does(self, language: str, command: list[str], call: str) -> None:
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        files = {b"a.md": b"one", "caf\u00e9/\u65e5\u672c.md".encode(): b"", b"not utf-8 \xff": b"\0"}
        hashed = {path: hashlib.sha256(content) for path, content in files.items()}
        given = json.dumps([[base64.b64encode(path).decode(), sha.hexdigest()] for path, sha in hashed.items()])
        for pairs, has in ((given, hashed), ("[]", {})):
            done = subprocess.run(
                [*command, f"{example(language, 1)}\n{call}"], input=pairs, capture_output=True, text=True, check=True
            )
            expected = of_files((path, sha.digest()) for path, sha in has.items()).digest
            assert done.stdout.strip() == expected


def example(language: str, number: int = 0) -> str:
    """One of the two code blocks of a language in the documentation: a receiver and the digest, or their messages."""
    found = re.findall(rf"```{language}\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    assert len(found) == 2
    return str(found[number])


@contextmanager
def running(command: list[str], **variables: str) -> Iterator[tuple["subprocess.Popen[str]", IO[str]]]:
    """A process and its output; it is killed at the latest at the end of the block."""
    environment = os.environ | {"WEBHOOK_KEY": KEY} | variables
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def send_in_pieces(receiver: Receiver, content: bytes, *, order: list[int]) -> list[int]:
    """A transfer of three pieces, sent in an order that may be wrong; returns the statuses."""
    text, transfer = base64.b64encode(content).decode(), str(uuid.uuid4())
    pieces = [text[:60], text[60:120], text[120:]]
    sha = {"sha": hashlib.sha256(content).hexdigest(), "size": len(content), "content_encoding": "base64"}
    return [
        deliver(
            receiver,
            "create",
            file_event(
                "blob",
                b"",
                file=sha | {"content": pieces[index], "chunk": {"id": transfer, "index": index, "total": 3}},
            ),
        )
        for index in order
    ]
