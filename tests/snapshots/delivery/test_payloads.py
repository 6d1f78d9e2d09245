"""The bodies, byte for byte, and the receivers that check them: one in Python, one in JavaScript."""

import base64
import json
import random
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import ReceivedRequest, Receiver, ReceiverFault
from docora.demo.signatures import docora_signature, standard_signature
from repositories import accounts, watches
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.changes import Change, Event
from snapshots.delivery.payloads import Bodies, serialise
from snapshots.models import Snapshot
from snapshots.paths import GitPath
from tests.conftest import ALICE_KEY
from tests.support.worker import Work

pytestmark = pytest.mark.any_database

NOTICED = datetime(2026, 1, 31, 9, 29, 59, 123456, tzinfo=UTC)

AWKWARD: dict[str, str | bytes] = {
    "empty.txt": b"",
    "nul.txt": "a\0b\x01\x1f\x7f",
    "separators.txt": "line\u2028paragraph\u2029end\ufeff",
    "quotes.txt": '"\\/\b\f\n\r\t</script>',
    "astral.txt": "𝄞 🇫🇷 e\u0301 \ufffd \U0010ffff",
    "surrogate.bin": b"\xed\xa0\x80 is a lone surrogate in bytes that only look like UTF-8",
    "overlong.bin": b"\xc0\x80",
    "latin1.txt": "déjà vu".encode("latin-1"),
    "utf16.txt": "hello".encode("utf-16"),
    "bom.txt": b"\xef\xbb\xbfbom",
    "crlf.txt": b"a\r\nb\r\n",
    'na"me\\ with\tall\u2028.md': "x",
    "ünïcode/日本語.md": "x",
}


# Prints JSON.stringify(JSON.parse(body)) of each line, in base64 as the lines are.
_STRINGIFY = """
const decode = (line) => JSON.parse(Buffer.from(line, "base64").toString());
for (const line of require("node:fs").readFileSync(0, "utf8").split("\\n").filter(Boolean))
  console.log(Buffer.from(JSON.stringify(decode(line))).toString("base64"));
"""


def refused_by_node(requests: list[ReceivedRequest], key: str) -> list[int]:
    lines = [
        json.dumps({"key": key, "headers": dict(request.headers), "body": base64.b64encode(request.body).decode()})
        for request in requests
    ]
    script = str(Path(__file__).parent / "verify.js")
    result = subprocess.run(["node", script], input="\n".join(lines), capture_output=True, text=True, check=True)
    return [int(line) for line in result.stdout.split()]


@pytest.fixture
def bodies() -> Bodies:
    return Bodies(
        Repository(public_id="repo_1", url="https://host/o/n", owner="o", name="n"),
        Snapshot(commit_sha="c" * 40, branch="main", noticed_at=NOTICED),
    )


def change(event: Event = Event.CREATE, *, path: bytes = b"a.md", size: int = 0) -> Change:
    return Change(
        event=event, file_id=1, path=GitPath(path), sha256=b"\1" * 32, since=1, size=size, previous=b"\2" * 32
    )


def test_a_create_has_its_keys_in_the_agreed_order(bodies: Bodies) -> None:
    (body,) = bodies.of(change(size=3), [b"abc"])
    payload = json.loads(body.content)
    assert list(payload) == ["repository", "file", "commit_sha", "timestamp", "ref_name", "noticed_at"]
    assert list(payload["repository"]) == ["repository_id", "github_url", "owner", "name"]
    assert list(payload["file"]) == ["path", "sha", "size", "content"]
    assert body.content.startswith(b'{"repository":{"repository_id":"repo_1",')
    assert payload["timestamp"][-5:-4] == "."
    assert payload["timestamp"].endswith("Z")


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_a_body_is_what_javascript_prints(bodies: Bodies) -> None:
    """Every control character and separator once, then a thousand random texts, astral characters among them."""
    everywhere = "".join(map(chr, [*range(0xA0), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF, 0x10000, 0x10FFFF]))
    dice = random.Random(2026)  # noqa: S311  guards nothing
    letters = [chr(dice.choice([dice.randrange(0xD800), dice.randrange(0xE000, 0x110000)])) for _ in range(5000)]
    texts = [everywhere, *("".join(dice.choices(letters, k=40)) for _ in range(1000))]
    sent = [next(bodies.of(change(size=len(text.encode())), [text.encode()])).content for text in texts]
    lines = "\n".join(base64.b64encode(body).decode() for body in sent)
    printed = subprocess.run(["node", "-e", _STRINGIFY], input=lines, capture_output=True, text=True, check=True).stdout
    assert [base64.b64decode(line) for line in printed.split()] == sent


def test_an_update_names_what_was_there_before(bodies: Bodies) -> None:
    (body,) = bodies.of(change(Event.UPDATE, size=1), [b"\xff"])
    payload = json.loads(body.content)
    assert list(payload) == ["repository", "file", "previous_sha", "commit_sha", "timestamp", "ref_name", "noticed_at"]
    assert list(payload["file"]) == ["path", "sha", "size", "content", "content_encoding"]
    assert payload["previous_sha"] == "02" * 32


def test_a_delete_names_path_and_last_sha(bodies: Bodies) -> None:
    (body,) = bodies.of(change(Event.DELETE), [])
    assert list(json.loads(body.content)["file"]) == ["path", "sha"]


def test_a_path_that_is_not_utf8_is_there_in_full(bodies: Bodies) -> None:
    (body,) = bodies.of(change(Event.DELETE, path=b"caf\xe9.md"), [])
    file = json.loads(body.content)["file"]
    assert (file["path"], base64.b64decode(file["path_base64"])) == ("caf%E9.md", b"caf\xe9.md")


@given(content=st.binary(min_size=1, max_size=200), size=st.integers(1, 50), cuts=st.integers(1, 7))
def test_pieces_join_to_the_file_whatever_their_size(content: bytes, size: int, cuts: int) -> None:
    from django.test import override_settings

    bodies = Bodies(Repository(public_id="r", url="u", owner="o", name="n"), Snapshot(commit_sha="c"))
    read = [content[start : start + cuts] for start in range(0, len(content), cuts)]
    with override_settings(BINARY_CHUNK_SIZE_BYTES=size, TEXT_CHUNK_THRESHOLD_BYTES=0):
        files = [json.loads(body.content)["file"] for body in bodies.of(change(size=len(content)), read)]
    assert base64.b64decode("".join(file["content"] for file in files)) == content
    assert [file["chunk"]["index"] for file in files] == list(range(len(files)))
    assert {(file["chunk"]["id"], file["chunk"]["total"]) for file in files} == {(files[0]["chunk"]["id"], len(files))}
    assert {len(file["content"]) for file in files[:-1]} <= {size}


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(text: str) -> None:
    assert json.loads(serialise({"content": text}))["content"] == text


@pytest.mark.django_db(transaction=True)
def test_every_awkward_file_is_accepted_by_a_receiver_in_javascript(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work, settings: Settings
) -> None:
    if not shutil.which("node"):
        pytest.skip("node is not installed: no receiver in JavaScript to ask")
    settings.BINARY_CHUNK_THRESHOLD_BYTES, settings.BINARY_CHUNK_SIZE_BYTES = 1000, 333
    settings.TEXT_CHUNK_THRESHOLD_BYTES = 5000
    remote = git_host.create("acme/awkward")
    large: dict[str, str | bytes] = {"large.bin": bytes(range(256)) * 9, "large.txt": "ü" * 4000}
    remote.commit(AWKWARD | large)
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"nul.txt": "\0\0", "bom.txt": None})
    watches.request_snapshot(watch.repository)
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert alice.files[watch.repository.public_id] == remote.files()
    assert alice.problems == []
    assert {request.event for request in alice.requests} == {"create", "update", "delete"}
    assert refused_by_node(alice.requests, ALICE_KEY) == []
    assert refused_by_node(alice.requests[:1], "another key") == [0]


@pytest.mark.django_db(transaction=True)
def test_text_goes_as_text_and_everything_else_as_base64(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work
) -> None:
    remote = git_host.create("acme/awkward")
    remote.commit(AWKWARD)
    watches.watch(alice_app, remote.url)
    work()
    encoded = {request.path for request in alice.requests if "content_encoding" in request.payload["file"]}
    assert encoded == {"surrogate.bin", "overlong.bin", "latin1.txt", "utf16.txt"}


@pytest.mark.django_db(transaction=True)
def test_a_transfer_that_fails_starts_again_under_another_id(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work, settings: Settings
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES, settings.BINARY_CHUNK_SIZE_BYTES = 100, 100
    remote = git_host.create("acme/large")
    remote.commit({"large.bin": b"\xff" * 225, "small.md": b"x"})
    seen = iter(range(100))
    fault = ReceiverFault(path="large.bin", status=500)
    fault.concerns = lambda request: request.path == "large.bin" and next(seen) == 1  # type: ignore[method-assign]
    alice.faults.put(fault)
    watches.watch(alice_app, remote.url)
    work()
    work(also_later_ones=True)
    chunks = [r.payload["file"]["chunk"] for r in alice.requests if r.path == "large.bin"]
    assert [chunk["index"] for chunk in chunks] == [0, 1, 0, 1, 2]
    assert len({chunk["id"] for chunk in chunks}) == 2
    assert alice.files[Repository.objects.get().public_id] == remote.files()
    assert alice.problems == []


@pytest.mark.django_db(transaction=True)
def test_a_transfer_does_not_take_the_answer_to_another_file_for_its_own(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work, settings: Settings
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES, settings.BINARY_CHUNK_SIZE_BYTES = 100, 100
    remote = git_host.create("acme/large")
    remote.commit({"a.md": b"slow", "large.bin": b"\xff" * 225})
    alice.faults.put(ReceiverFault(path="a.md", delay=0.3))
    alice.faults.put(ReceiverFault(path="large.bin", status=413))
    watches.watch(alice_app, remote.url)
    work()
    assert [request.path for request in alice.requests] == ["a.md", "large.bin"]


@pytest.mark.django_db(transaction=True)
def test_a_transfer_that_is_refused_is_parked_and_not_continued(
    alice_app: App, alice: Receiver, git_host: GitHost, work: Work, settings: Settings
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES, settings.BINARY_CHUNK_SIZE_BYTES = 100, 100
    remote = git_host.create("acme/large")
    remote.commit({"a.bin": b"\xff" * 225, "b.md": b"x"})
    with alice.faults.put(ReceiverFault(path="a.bin", status=413)):
        watch = watches.watch(alice_app, remote.url)
        work()
    assert [request.path for request in alice.requests] == ["a.bin", "b.md"]
    assert watch.parked.count() == 1


@pytest.mark.django_db(transaction=True)
class TestRotation:
    """The webhook key changes; the receiver hears of it before, during or after."""

    def test_both_keys_verify_the_standard_header(
        self, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        new = accounts.rotate_webhook_key(alice_app)
        alice.webhook_keys = (new,)
        watches.watch(alice_app, remote.url)
        work()
        assert alice.problems == []
        for request in alice.requests:
            given = request.headers["webhook-signature"].split()
            timestamp, message_id = request.headers["webhook-timestamp"], request.headers["webhook-id"]
            assert given == [standard_signature(key, message_id, timestamp, request.body) for key in (new, ALICE_KEY)]
            assert request.headers["x-docora-signature"] == docora_signature(new, timestamp, request.body)

    def test_a_receiver_that_only_knows_the_old_key_survives_the_overlap(
        self, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        accounts.rotate_webhook_key(alice_app)
        watch = watches.watch(alice_app, remote.url)
        work()
        watch.refresh_from_db()
        assert watch.status == WatchStatus.SYNCED
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_who_rotates_again_because_the_answer_was_lost_locks_nobody_out(
        self, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        keys = [ALICE_KEY, *(accounts.rotate_webhook_key(alice_app) for _ in range(2))]
        assert alice_app.signing_keys == keys[::-1]
        for number, key in enumerate(keys):
            alice.webhook_keys = (key,)
            remote.commit({"README.md": f"for key {number}"})
            watch = Watch.objects.first() or watches.watch(alice_app, remote.url)
            watches.request_snapshot(watch.repository)
            work()
            assert Watch.objects.get().status == WatchStatus.SYNCED
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_the_old_key_ends_with_the_overlap(
        self, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        accounts.rotate_webhook_key(alice_app, overlap=timedelta(0))
        watch = watches.watch(alice_app, remote.url)
        work()
        watch.refresh_from_db()
        assert "401" in watch.last_error
        assert not alice.files

    def test_a_key_that_is_too_short_is_refused_and_nothing_changes(self, alice_app: App) -> None:
        from django.core.exceptions import ValidationError

        with pytest.raises(ValidationError):
            accounts.rotate_webhook_key(alice_app, webhook_key="short")
        alice_app.refresh_from_db()
        assert alice_app.signing_keys == [ALICE_KEY]
