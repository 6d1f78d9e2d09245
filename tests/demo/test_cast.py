"""The cast itself: a host that real git clones from, and a receiver that notices what is wrong."""

import base64
import gzip
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
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from docora.demo.bare import Content, executable, submodule, symlink
from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.mirror import Mirror
from docora.demo.receiver import Receiver, ReceiverFault
from docora.demo.signatures import docora_signature, standard_signature, stringify

KEY = "a webhook key of the cast"
DOCUMENTATION = Path(__file__).parent.parent.parent / "docs" / "receivers.md"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    with GitHost(tmp_path / "host") as host:
        yield host


@pytest.fixture
def repository(host: GitHost) -> HostedRepository:
    repository = host.create("ada/notes")
    repository.commit({"README.md": "# Notes\n", "src/main.py": "print()\n"})
    return repository


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver(webhook_key=KEY) as receiver:
        yield receiver


def git(*arguments: str | Path, seconds: float = 30) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=seconds)


def with_token(url: str, token: str) -> str:
    return url.replace("http://", f"http://x-access-token:{token}@")


class TestGitHost:
    def test_git_clones_what_was_committed(self, repository: HostedRepository, tmp_path: Path) -> None:
        assert git("clone", repository.url, tmp_path / "clone").returncode == 0
        assert (tmp_path / "clone" / "README.md").read_text() == "# Notes\n"
        assert git("-C", tmp_path / "clone", "rev-parse", "HEAD").stdout.strip() == repository.tip()

    def test_names_are_case_insensitive_and_may_end_in_git(self, repository: HostedRepository) -> None:
        for url in (repository.url + ".git", repository.url.replace("ada/notes", "Ada/Notes")):
            assert str(repository.tip()) in git("ls-remote", url).stdout

    def test_an_empty_repository_has_no_refs(self, host: GitHost) -> None:
        listed = git("ls-remote", "--symref", host.create("ada/empty").url, "HEAD")
        assert (listed.returncode, listed.stdout) == (0, "")

    def test_a_commit_may_edit_rename_and_delete(self, repository: HostedRepository) -> None:
        repository.commit({"README.md": "# More\n", "docs/index.md": ""})
        repository.rename("src", "lib")
        repository.commit({"docs/index.md": None})
        assert repository.files() == {"README.md": b"# More\n", "lib/main.py": b"print()\n"}

    def test_a_commit_may_hold_what_no_file_system_does(self, repository: HostedRepository) -> None:
        name = b'\xff\n"caf\xe9"'
        linked = submodule("ab" * 20)
        changes: dict[bytes, Content] = {name: b"\0", b"run": executable(b"#!"), b"link": symlink(b"run")}
        repository.commit(changes | {b"lib": linked})
        assert repository.files()[name.decode(errors="surrogateescape")] == b"\0"
        modes = {line[:6] for line in repository.git("ls-tree", "-r", "HEAD").decode().splitlines()}
        assert modes == {"100644", "100755", "120000", "160000"}

    def test_a_rewrite_leaves_the_old_tip_behind(self, repository: HostedRepository) -> None:
        first = repository.tip()
        second = repository.commit({"a": "1"})
        third = repository.rewrite({"a": "2"})
        assert repository.tip() == third
        assert repository.git("rev-list", third).decode().split() == [third, first]
        assert second != third

    def test_a_root_commit_can_be_rewritten(self, repository: HostedRepository) -> None:
        assert repository.files(repository.rewrite({"only": "this"})) == {"only": b"this"}

    def test_the_default_branch_can_change(self, repository: HostedRepository) -> None:
        repository.point("trunk", repository.tip() or "")
        repository.set_default_branch("trunk")
        repository.delete_branch("main")
        assert "ref: refs/heads/trunk\tHEAD" in git("ls-remote", "--symref", repository.url, "HEAD").stdout

    def test_a_large_push_arrives(self, repository: HostedRepository, tmp_path: Path) -> None:
        """Git sends what is larger than its buffer in chunks."""
        clone = tmp_path / "clone"
        git("clone", repository.url, clone)
        (clone / "large").write_bytes(os.urandom(300_000))
        git("-C", clone, "add", "large")
        git("-C", clone, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "Add")
        pushed = git("-C", clone, "-c", "http.postBuffer=65536", "push", "origin", "HEAD")
        assert pushed.returncode == 0, pushed.stderr
        assert repository.files()["large"] == (clone / "large").read_bytes()

    @pytest.mark.parametrize("way", ["plain", "gzip", "chunked", "expect"])
    def test_a_request_body_may_come_in_any_way(self, repository: HostedRepository, way: str) -> None:
        status, answer = list_refs(repository, way)
        assert status == 200
        assert (repository.tip() or "").encode() in answer

    def test_a_connection_is_kept_for_further_requests(self, repository: HostedRepository) -> None:
        connection = http.client.HTTPConnection(repository.url.split("/")[2])
        for _ in range(3):
            connection.request("GET", "/ada/notes/info/refs?service=git-upload-pack")
            response = connection.getresponse()
            assert (response.status, response.will_close) == (200, False)
            response.read()
        connection.close()

    def test_requests_are_counted_by_kind(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        git("ls-remote", repository.url)
        git("clone", repository.url, tmp_path / "clone")
        counts = {kind: host.count(repository, kind) for kind in ("advertise", "ls-refs", "fetch")}
        assert counts == {"advertise": 2, "ls-refs": 2, "fetch": 1}

    def test_many_clones_at_once(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            clones = list(pool.map(lambda number: git("clone", repository.url, tmp_path / str(number)), range(8)))
        assert [clone.returncode for clone in clones] == [0] * 8
        assert host.count(repository, "fetch") == 8

    def test_a_private_repository_opens_for_its_tokens_alone(self, host: GitHost) -> None:
        secret = host.create("ada/secret", private_to={"token-a"})
        sha = secret.commit({"a": "1"})
        host.add_token("token-b")
        assert sha in git("ls-remote", with_token(secret.url, "token-a")).stdout
        assert "not found" in git("ls-remote", with_token(secret.url, "token-b")).stderr
        assert "Authentication failed" in git("ls-remote", with_token(secret.url, "token-c")).stderr
        assert "could not read Username" in git("ls-remote", secret.url).stderr

    def test_a_repository_that_is_not_there_looks_like_a_private_one(self, host: GitHost) -> None:
        nothing = f"http://{host.address}/ada/nothing"
        host.add_token("token-a")
        assert "could not read Username" in git("ls-remote", nothing).stderr
        assert "not found" in git("ls-remote", with_token(nothing, "token-a")).stderr

    def test_a_token_can_lose_and_regain_access(self, host: GitHost) -> None:
        secret = host.create("ada/secret", private_to={"token-a"})
        secret.commit({"a": "1"})
        url = with_token(secret.url, "token-a")
        host.revoke(secret, "token-a")
        assert "not found" in git("ls-remote", url).stderr
        host.grant(secret, "token-a")
        assert git("ls-remote", url).returncode == 0
        host.expire_token("token-a")
        assert "Authentication failed" in git("ls-remote", url).stderr

    @pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
    def test_it_fails_as_often_as_it_is_told(self, host: GitHost, repository: HostedRepository, status: int) -> None:
        host.faults.put(GitFault(repository=repository, status=status, retry_after=7, times=1))
        connection = http.client.HTTPConnection(host.address)
        seen = []
        for _ in range(2):
            connection.request("GET", "/ada/notes/info/refs?service=git-upload-pack")
            response = connection.getresponse()
            seen.append((response.status, response.headers["Retry-After"]))
            response.read()
        connection.close()
        assert seen == [(status, "7"), (200, None)]

    def test_a_fault_of_one_repository_spares_the_others(self, host: GitHost, repository: HostedRepository) -> None:
        other = host.create("ada/other")
        with host.faults.put(GitFault(repository=other, status=500)):
            assert git("ls-remote", other.url).returncode != 0
            assert git("ls-remote", repository.url).returncode == 0
        assert git("ls-remote", other.url).returncode == 0

    def test_a_moved_repository_redirects(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        moved = host.create("bob/notes")
        moved.commit({"moved": "yes"})
        host.faults.put(GitFault(repository=repository, redirect_to=moved))
        assert git("clone", repository.url, tmp_path / "clone").returncode == 0
        assert (tmp_path / "clone" / "moved").exists()

    def test_a_hanging_answer_comes_when_the_fault_is_lifted(self, host: GitHost, repository: HostedRepository) -> None:
        with ThreadPoolExecutor(1) as pool:
            with host.faults.put(GitFault(hang=True)):
                asked = pool.submit(git, "ls-remote", repository.url)
                time.sleep(0.5)
                assert not asked.done()
            assert asked.result().returncode == 0

    @pytest.mark.parametrize("large", [True, False])
    def test_a_pack_can_break_off(
        self, host: GitHost, repository: HostedRepository, tmp_path: Path, large: bool
    ) -> None:
        repository.commit({"large": os.urandom(500_000 if large else 1)})
        host.faults.put(GitFault(drop_after=100_000, times=1))
        assert git("clone", repository.url, tmp_path / "first").returncode != 0
        assert git("clone", repository.url, tmp_path / "second").returncode == 0

    def test_a_pack_can_stop_half_way(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        repository.commit({"large": os.urandom(500_000)})
        with ThreadPoolExecutor(1) as pool:
            with host.faults.put(GitFault(hang_after=100_000)):
                cloned = pool.submit(git, "clone", repository.url, tmp_path / "clone")
                time.sleep(0.5)
                assert not cloned.done()
            assert cloned.result().returncode == 0

    def test_a_pack_can_be_slow(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        repository.commit({"large": os.urandom(100_000)})
        host.faults.put(GitFault(bytes_per_second=100_000))
        started = time.monotonic()
        assert git("clone", repository.url, tmp_path / "clone").returncode == 0
        assert time.monotonic() - started > 0.8

    def test_closing_ends_whoever_hangs(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(1) as pool, GitHost(tmp_path / "host") as host:
            repository = host.create("ada/notes")
            repository.commit({"large": os.urandom(2_000_000)})
            host.faults.put(GitFault(hang_after=1000))
            cloned = pool.submit(git, "clone", repository.url, tmp_path / "clone")
            while not host.count(repository, "fetch"):
                time.sleep(0.01)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("git host")]
        cloned.result(timeout=10)


def list_refs(repository: HostedRepository, way: str) -> tuple[int, bytes]:
    """Ask for the refs in protocol 2 with a body that is framed or packed in the given way."""
    body = b"0014command=ls-refs\n00010000"
    headers = {"Content-Type": "application/x-git-upload-pack-request", "Git-Protocol": "version=2"}
    if way == "gzip":
        headers["Content-Encoding"], body = "gzip", gzip.compress(body)
    if way == "expect":
        headers["Expect"] = "100-continue"
    connection = http.client.HTTPConnection(repository.url.split("/")[2])
    sent = iter([body[:7], body[7:]]) if way == "chunked" else body
    connection.request("POST", "/ada/notes/git-upload-pack", sent, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, answer


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
            wait_for_port(port)
            assert deliver(client, "create", message) == 204
            assert output.readline() == "create docs/caf\u00e9.md\n"
            assert deliver(client, "create", message, key="another key altogether") == 401
            body = stringify(message)
            assert post(client, "create", body, headers_for(body) | {"X-Docora-Timestamp": "1000000000"}) == 401
            assert post(client, "create", body, {}) == 401

    def test_the_example_of_a_message_is_true(self) -> None:
        message = json.loads(example("json"))
        mirror = Mirror()
        mirror.files = {message["repository"]["repository_id"]: {"docs/start.md": b""}}
        mirror.apply("update", message)
        assert mirror.problems == []


def example(language: str) -> str:
    """The one code block of a language in the documentation."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", DOCUMENTATION.read_text(), re.DOTALL)
    return str(found)


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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError(f"nothing listens on port {port}")


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
