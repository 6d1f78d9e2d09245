"""POST /hooks/{id}: what proves a push, what is read before it is proven, and how often and how long it is tried."""

import hmac
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Timer
from typing import Any

import orjson
import pytest
import redis
from django.db import connection as database
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from docora.api.hooks import receive
from docora.api.hooks.proofs import Proofs
from docora.api.hooks.together import HooksTogether
from docora.demo.githost import HostedRepository
from docora.limits import rate
from docora.processes import valkey as embedded
from repositories import hooks, messages, watches
from repositories.base import queue
from repositories.models import App, Hook
from tests.support.git_hooks import Sender, Sent, gitea, github, gitlab, gitlab_signed, sign
from tests.support.hook_cast import MadeHook, unreachable, waiting

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("no_pauses"),
    pytest.mark.any_database,
]


@pytest.fixture
def made(alice_app: App, remote: HostedRepository) -> MadeHook:
    """Nothing is delivered here: the watch was never looked at."""
    return MadeHook.of(watches.watch(alice_app, remote.url))


def test_a_wrong_proof_and_none_are_refused(made: MadeHook, send: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr("docora.api.hooks.events._parse", lambda body, _: parsed.append(body))
    for sent in (send("whsec_d3Jvbmc=", "acme/handbook"), send(made.secret, "acme/handbook").without_proof()):
        assert sent.to(made.url).status_code == 401
    assert waiting() == []
    assert parsed == []
    assert (made.log.accepted, made.log.refused, made.log.last_error) == (0, 2, "The proof is missing or wrong.")


def test_the_time_of_a_comparison_tells_nothing(made: MadeHook, send: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was sent is compared in constant time alone, and as often when it is right as when it is wrong."""
    compared: list[str] = []
    compare = hmac.compare_digest

    def note(ours: bytes, theirs: bytes) -> bool:
        compared.append(theirs.decode())
        return compare(ours, theirs)

    monkeypatch.setattr(hmac, "compare_digest", note)
    counts = set()
    for secret, status in ((made.secret, 202), ("whsec_" + "d" * 43 + "=", 401)):
        compared.clear()
        sent = send(secret, "acme/handbook")
        assert sent.to(made.url).status_code == status
        proofs = [value for name, value in sent.headers.items() if re.search(r"(?i)signature|gitlab-token", name)]
        assert {proof.removeprefix("sha256=").removeprefix("v1,") for proof in proofs} <= set(compared)
        counts.add(len(compared))
    assert len(counts) == 1


def test_a_changed_body_is_refused(made: MadeHook, send: Sender) -> None:
    sent = send(made.secret, "acme/handbook")
    if "X-Gitlab-Token" in sent.headers:
        pytest.skip("a token in clear proves nothing about the body")
    assert replace(sent, body=sent.body.replace(b"main", b"mine")).to(made.url).status_code == 401


def test_an_unknown_hook_is_answered_as_a_wrong_proof(made: MadeHook, send: Sender) -> None:
    wrong = send("whsec_d3Jvbmc=", "acme/handbook").to(made.url)
    unknown = send(made.secret, "acme/handbook").to(f"/hooks/hook_{'0' * 24}")
    malformed = send(made.secret, "acme/handbook").to("/hooks/anything")
    assert wrong.status_code == unknown.status_code == malformed.status_code == 401
    assert wrong.content == unknown.content == malformed.content


def test_the_secret_that_unknown_hooks_are_checked_against_opens_none(made: MadeHook) -> None:
    for secret in receive._NO_HOOK.secrets:
        assert github(secret, "acme/handbook").to(f"/hooks/hook_{'0' * 24}").status_code == 401


def test_an_unknown_hook_costs_the_same_work(made: MadeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many HMACs over the body, as many statements, as many commands to Redis."""
    hashed: list[int] = []
    update = Proofs.update

    def note(proofs: Proofs, piece: bytes) -> None:
        hashed.append(len(proofs._plain))
        update(proofs, piece)

    monkeypatch.setattr(Proofs, "update", note)
    costs = []
    for url in (made.url, f"/hooks/hook_{'0' * 24}"):
        hashed.clear()
        with CaptureQueriesContext(database) as statements:
            assert github("wrong", "acme/handbook").to(url).status_code == 401
        costs.append((list(hashed), len(statements)))
    assert costs[0] == costs[1] == ([hooks.MOST_SECRETS], 1)
    assert [log.refused for log in hooks.logs([made.hook.public_id, "unknown"]).values()] == [1, 1]


def test_what_does_not_prove_itself_is_not_parsed(made: MadeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    parse = orjson.loads

    def note(text: bytes) -> object:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(orjson, "loads", note)
    for body in (b"{", b"{}"):
        wrong = {"X-Hub-Signature-256": f"sha256={sign('wrong', body)}", "X-GitHub-Event": "push"}
        assert Sent(body, wrong | {"Content-Type": "application/json"}).to(made.url).status_code == 401
    assert parsed == []
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert len(parsed) == 1


def test_every_proof_is_compared_in_constant_time_and_none_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever fits: the first, the last, or none."""
    compared: list[bool] = []
    compare = hmac.compare_digest

    def note(one: bytes, other: bytes) -> bool:
        compared.append(compare(one, other))
        return compared[-1]

    monkeypatch.setattr(hmac, "compare_digest", note)
    results = []
    for secret in ("one", "two", "three"):
        for send in (github, gitea, gitlab):
            compared.clear()
            sent = send(secret, "acme/handbook")
            proofs = Proofs(sent.headers, ["one", "two"])
            proofs.update(sent.body)
            assert proofs.hold() == any(compared) == (secret != "three")
            results.append(len(compared))
    assert results == [10] * 9, "two secrets, four headers with a signature and one with a token"


def test_both_secrets_count_until_the_overlap_ends(made: MadeHook) -> None:
    new = hooks.change_secret(made.hook)
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert github(new, "acme/handbook").to(made.url).status_code == 202
    Hook.objects.update(previous_secret_until=timezone.now() - timedelta(seconds=1))
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 401
    assert github(new, "acme/handbook").to(made.url).status_code == 202
    newest = hooks.change_secret(made.hook)
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 401, "an overlap that has ended stays so"
    assert github(new, "acme/handbook").to(made.url).status_code == 202
    assert github(newest, "acme/handbook").to(made.url).status_code == 202


def test_asking_twice_leaves_the_secret_valid_that_the_host_knows(made: MadeHook) -> None:
    """The first answer may have been lost, or somebody pressed the button twice."""
    given = [made.secret, *(hooks.change_secret(made.hook) for _ in range(3))]
    answers = [github(secret, "acme/handbook").to(made.url).status_code for secret in given]
    assert answers == [401, 202, 202, 202], "the newest counts, and the two before it"


def test_each_change_gives_both_earlier_secrets_a_whole_day(made: MadeHook) -> None:
    hooks.change_secret(made.hook)
    Hook.objects.update(previous_secret_until=timezone.now() + timedelta(hours=1))
    hooks.change_secret(made.hook)
    until = made.hook.previous_secret_until
    assert until
    assert until > timezone.now() + timedelta(hours=23)
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202


@pytest.mark.parametrize("age", [400, -400])
def test_an_old_signature_with_a_timestamp_is_refused(made: MadeHook, age: float) -> None:
    assert gitlab_signed(made.secret, "acme/handbook", sent_at=time.time() - age).to(made.url).status_code == 401


def test_the_old_sha1_proves_nothing(made: MadeHook) -> None:
    sent = github(made.secret, "acme/handbook")
    headers = {name: value for name, value in sent.headers.items() if name != "X-Hub-Signature-256"}
    assert Sent(sent.body, headers).to(made.url).status_code == 401


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"payload=", b'"push"', b"\xff"])
def test_a_body_that_cannot_be_read_is_an_error_of_its_own(made: MadeHook, body: bytes) -> None:
    proof = {"X-Hub-Signature-256": f"sha256={sign(made.secret, body)}", "X-GitHub-Event": "push"}
    for content_type in ("application/json", "application/x-www-form-urlencoded"):
        answer = Sent(body, proof | {"Content-Type": content_type}).to(made.url)
        assert answer.status_code == 400
    assert made.log.last_error.startswith("The body is not")


def test_a_large_body_is_hashed_in_pieces_and_not_parsed(made: MadeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that sends what blows up in memory hurts nobody; the look is asked for all the same."""
    pieces: list[int] = []
    update = Proofs.update

    def note(proofs: Proofs, piece: bytes) -> None:
        pieces.append(len(piece))
        update(proofs, piece)

    kept: list[int] = []
    push = receive._push

    def note_kept(hook: hooks.OpenHook, event: str, body: bytes, content_type: str) -> hooks.Push:
        kept.append(len(body))
        return push(hook, event, body, content_type)

    monkeypatch.setattr(Proofs, "update", note)
    monkeypatch.setattr(receive, "_push", note_kept)
    body = b"[" + b"{}," * 1_000_000 + b"{}]"
    proof = {"X-Hub-Signature-256": f"sha256={sign(made.secret, body)}", "X-GitHub-Event": "push"}
    assert Sent(body, proof | {"Content-Type": "application/json"}).to(made.url).status_code == 202
    assert sum(pieces) == len(body)
    assert max(pieces) <= 65536
    assert kept == [(1 << 20) + 1]


def test_a_body_over_the_limit_is_not_read(made: MadeHook, client: Client) -> None:
    answer = client.generic("POST", made.url, b"x", headers={"Content-Length": str(26 << 20), "X-GitHub-Event": "push"})
    assert answer.status_code == 413
    assert client.generic("POST", made.url, b"x", headers={"Transfer-Encoding": "chunked"}).status_code == 411
    assert client.get(made.url).status_code == 405


def test_no_more_than_the_limit_is_taken_from_one_hook(made: MadeHook, settings: Settings) -> None:
    settings.HOOK_RATE = 2
    for expected in (202, 202, 429):
        assert github(made.secret, "acme/handbook").to(made.url).status_code == expected
    [log] = hooks.logs([made.url.rpartition("/")[2]]).values()
    assert (log.accepted, log.refused, log.last_error) == (2, 1, "Too many requests.")
    assert github("wrong", "acme/handbook").to(made.url).status_code == 401


def test_a_forged_hook_uses_up_no_allowance(made: MadeHook, settings: Settings) -> None:
    settings.HOOK_RATE = 1
    for _ in range(5):
        assert github("wrong", "acme/handbook").to(made.url).status_code == 401
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202


def test_a_forged_hook_is_not_told_that_the_hook_has_sent_too_much(made: MadeHook, settings: Settings) -> None:
    settings.HOOK_RATE = 1
    sent = [github(made.secret, "acme/handbook").to(made.url).status_code for _ in range(2)]
    assert sent == [202, 429]
    assert github("wrong", "acme/handbook").to(made.url).status_code == 401


def test_forged_hooks_from_one_address_end(made: MadeHook, settings: Settings) -> None:
    settings.ADDRESS_RATE = 2
    for expected in (401, 401, 429):
        assert github("wrong", "acme/handbook").to(made.url).status_code == expected


def test_a_large_body_is_not_read_for_an_address_that_has_sent_too_much(
    made: MadeHook, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    update = Proofs.update

    def note(proofs: Proofs, piece: bytes) -> None:
        read.append(len(piece))
        update(proofs, piece)

    monkeypatch.setattr(Proofs, "update", note)
    large = Sent(b"x" * (1 << 17), {"Content-Type": "application/json"})
    settings.ADDRESS_RATE = 1
    assert large.to(made.url).status_code == 401
    assert sum(read) == 1 << 17
    assert large.to(made.url).status_code == 429
    assert sum(read) == 1 << 17


def test_a_large_body_of_a_hook_that_has_sent_too_much_is_not_parsed(
    made: MadeHook, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    parse = orjson.loads

    def note(text: bytes) -> object:
        parsed.append(len(text))
        return parse(text)

    monkeypatch.setattr(orjson, "loads", note)
    settings.HOOK_RATE = 1
    body = b'{"ref": "refs/heads/main", "filler": "' + b"x" * (1 << 17) + b'"}'
    proof = {"X-Hub-Signature-256": f"sha256={sign(made.secret, body)}", "X-GitHub-Event": "push"}
    large = Sent(body, proof | {"Content-Type": "application/json"})
    assert [large.to(made.url).status_code for _ in range(2)] == [202, 429]
    assert parsed == [len(body)]


def test_a_hook_for_a_host_that_is_not_ours_is_refused(made: MadeHook, client: Client) -> None:
    assert client.post(made.url, headers={"Host": "elsewhere.example"}).status_code == 400
    assert hooks.logs([made.hook.public_id])[made.hook.public_id].refused == 0


def test_only_a_path_of_one_name_is_a_hook(made: MadeHook, client: Client) -> None:
    for path in ("/hooks/", "/hooks/a/b", "/hooks"):
        assert client.post(path).status_code == 404, path


def test_without_redis_the_answer_is_503_at_once(made: MadeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = unreachable()
    monkeypatch.setattr(queue, "impatient_connection", lambda: gone)
    monkeypatch.setattr("docora.limits.rate.connection", lambda: gone)
    started = time.monotonic()
    for sent in (github(made.secret, "acme/handbook"), github("wrong", "acme/handbook")):
        answer = sent.to(made.url)
        assert answer.status_code == 503
        assert answer["Retry-After"] == "5"
    assert time.monotonic() - started < 5  # redis-py's own retries would take longer


@pytest.fixture
def valkey(
    made: MadeHook, data_dir: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> "Iterator[subprocess.Popen[bytes]]":
    """A real server that has answered the web process before."""
    monkeypatch.undo()  # the fake one
    socket = data_dir / "valkey.sock"
    process = embedded.start(socket, persistent=False)
    settings.REDIS_URL = f"unix://{socket}"
    for cached in (queue.connection, queue.impatient_connection, rate.connection):
        cached.cache_clear()
    while github(made.secret, "acme/handbook").to(made.url).status_code != 202:
        pass  # a server that has just begun may need more than the 80 ms of one question
    yield process
    process.kill()
    process.wait(timeout=10)


def test_a_redis_that_is_slow_after_the_answer_still_gets_to_know_of_the_look(
    made: MadeHook, valkey: "subprocess.Popen[bytes]"
) -> None:
    queue.connection().flushall()
    [answer] = HooksTogether().answer_all([github(made.secret, "acme/handbook").short(made.url)])
    assert answer.then is not None
    valkey.send_signal(signal.SIGSTOP)
    Timer(0.5, valkey.send_signal, [signal.SIGCONT]).start()
    answer.then()
    assert queue.is_alive(messages.snapshot_job(made.watch.repository_id))


def test_a_push_that_redis_was_too_slow_for_is_looked_at_as_soon_as_it_answers(
    made: MadeHook, valkey: "subprocess.Popen[bytes]"
) -> None:
    queue.connection().flushall()
    answerer, push = HooksTogether(), github(made.secret, "acme/handbook").short
    valkey.send_signal(signal.SIGSTOP)
    [late] = answerer.answer_all([push(made.url)])
    [lost] = answerer.answer_all([push(made.url)])
    [forged] = HooksTogether().answer_all([github("wrong", "acme/handbook").short(made.url)])
    assert (late.status, lost.status, forged.status) == (503, 503, 503)
    assert late.then is not None
    assert lost.then is None, "one batch at a time is kept for later"
    assert forged.then is None
    Timer(0.3, valkey.send_signal, [signal.SIGCONT]).start()
    late.then()
    assert queue.is_alive(messages.snapshot_job(made.watch.repository_id))
    valkey.send_signal(signal.SIGSTOP)
    [late] = answerer.answer_all([push(made.url)])
    assert late.then is not None, "there is room for the next"
    valkey.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("limits", [60, 0])
def test_a_redis_that_hangs_is_waited_for_once_and_shortly(
    made: MadeHook,
    valkey: "subprocess.Popen[bytes]",
    limits: int,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.ADDRESS_RATE = settings.HOOK_RATE = limits
    valkey.send_signal(signal.SIGSTOP)
    waited: list[float | None] = []
    read = redis.Connection.read_response

    def note_time_out(connection: redis.Connection, *arguments: Any, **rest: Any) -> Any:
        try:
            return read(connection, *arguments, **rest)
        except redis.TimeoutError:
            waited.append(connection.socket_timeout)
            raise

    monkeypatch.setattr(redis.connection.AbstractConnection, "read_response", note_time_out)
    for sent in (github(made.secret, "acme/handbook"), github("wrong", "acme/handbook")):
        for _ in range(2):  # the second on a new connection
            waited.clear()
            [answer] = HooksTogether().answer_all([sent.short(made.url)])
            assert answer.status == 503
            assert waited == [0.08]
    assert "Requests are not limited" not in caplog.text, "the limits of other requests have more patience"
