"""POST /hooks/{id}: what each git host sends, what proves it, and what becomes of it."""

import hmac
import json
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import connection as database
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from docora.api.hooks import receive
from docora.api.hooks.proofs import Proofs
from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from docora.limits import rate
from docora.processes import valkey as embedded
from repositories import hints, hooks, watches
from repositories.base import queue
from repositories.models import App, Hook, Repository, Watch
from tests.support.api import Api
from tests.support.git_hooks import SENDERS, ZERO, Sender, Sent, gitea, github, gitlab, gitlab_signed, sign
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "INTERVAL", 0.0)


@pytest.fixture(params=list(SENDERS))
def send(request: pytest.FixtureRequest) -> Sender:
    return SENDERS[request.param]


@dataclass(frozen=True)
class Made:
    """A watch, and the hook that its app has made for it."""

    watch: Watch
    url: str
    secret: str

    @property
    def hook(self) -> Hook:
        return Hook.objects.get(watch=self.watch)

    @property
    def log(self) -> hooks.Log:
        return hooks.logs([self.hook.public_id])[self.hook.public_id]


@pytest.fixture
def made(watch: Watch) -> Made:
    hook, secret = hooks.open_for(watch)
    return Made(watch, f"/hooks/{hook.public_id}", secret)


def unreachable() -> redis.Redis:
    return redis.Redis(unix_socket_path="/nonexistent/valkey.sock", retry=Retry(NoBackoff(), 0))


def waiting() -> list[str]:
    return queue.named(queue.URGENT).job_ids


def test_a_push_is_delivered(made: Made, send: Sender, remote: HostedRepository, work: Work, alice: Receiver) -> None:
    remote.commit({"README.md": "# Handbook, changed\n"})
    assert send(made.secret, "acme/handbook").to(made.url).status_code == 202
    work()
    assert alice.files_of(made.watch.repository.public_id) == remote.files()
    assert (made.log.accepted, made.log.ignored, made.log.refused) == (1, 0, 0)


def test_a_wrong_proof_and_none_are_refused(made: Made, send: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[bytes] = []
    monkeypatch.setattr("docora.api.hooks.events._parse", lambda body, _: parsed.append(body))
    for sent in (send("whsec_d3Jvbmc=", "acme/handbook"), send(made.secret, "acme/handbook").without_proof()):
        assert sent.to(made.url).status_code == 401
    assert waiting() == []
    assert parsed == []
    assert (made.log.accepted, made.log.refused, made.log.last_error) == (0, 2, "The proof is missing or wrong.")


def test_the_time_of_a_comparison_tells_nothing(made: Made, send: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_changed_body_is_refused(made: Made, send: Sender) -> None:
    sent = send(made.secret, "acme/handbook")
    if "X-Gitlab-Token" in sent.headers:
        pytest.skip("a token in clear proves nothing about the body")
    assert replace(sent, body=sent.body.replace(b"main", b"mine")).to(made.url).status_code == 401


def test_an_unknown_hook_is_answered_as_a_wrong_proof(made: Made, send: Sender) -> None:
    wrong = send("whsec_d3Jvbmc=", "acme/handbook").to(made.url)
    unknown = send(made.secret, "acme/handbook").to(f"/hooks/hook_{'0' * 24}")
    malformed = send(made.secret, "acme/handbook").to("/hooks/anything")
    assert wrong.status_code == unknown.status_code == malformed.status_code == 401
    assert wrong.content == unknown.content == malformed.content


def test_the_secret_that_unknown_hooks_are_checked_against_opens_none(made: Made) -> None:
    for secret in (receive._NOBODY.secret, receive._NOBODY.previous_secret):
        assert github(secret, "acme/handbook").to(f"/hooks/hook_{'0' * 24}").status_code == 401


def test_an_unknown_hook_costs_the_same_work(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert costs[0] == costs[1] == ([2], 1)
    assert [log.refused for log in hooks.logs([made.hook.public_id, "unknown"]).values()] == [1, 1]


def test_what_does_not_prove_itself_is_not_parsed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_both_secrets_count_until_the_overlap_ends(made: Made) -> None:
    new = hooks.change_secret(made.hook)
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert github(new, "acme/handbook").to(made.url).status_code == 202
    Hook.objects.update(previous_secret_until=timezone.now() - timedelta(seconds=1))
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 401
    assert github(new, "acme/handbook").to(made.url).status_code == 202


@pytest.mark.parametrize("age", [400, -400])
def test_an_old_signature_with_a_timestamp_is_refused(made: Made, age: float) -> None:
    assert gitlab_signed(made.secret, "acme/handbook", sent_at=time.time() - age).to(made.url).status_code == 401


def test_the_old_sha1_proves_nothing(made: Made) -> None:
    sent = github(made.secret, "acme/handbook")
    headers = {name: value for name, value in sent.headers.items() if name != "X-Hub-Signature-256"}
    assert Sent(sent.body, headers).to(made.url).status_code == 401


def test_what_no_watch_wants_is_answered_with_204_and_nothing_happens(made: Made, send: Sender) -> None:
    for facts in (
        {"ref": "refs/heads/other"},
        {"ref": "refs/tags/v1"},
        {"after": ZERO},
    ):
        assert send(made.secret, "acme/handbook", **facts).to(made.url).status_code == 204
    assert waiting() == []
    assert made.log.ignored == 3


def test_other_events_do_nothing(made: Made) -> None:
    assert github(made.secret, "acme/handbook", event="ping").to(made.url).status_code == 204
    assert github(made.secret, "acme/handbook", event="issues").to(made.url).status_code == 204
    assert gitlab(made.secret, "acme/handbook", event="issue").to(made.url).status_code == 204
    assert waiting() == []


def test_a_new_default_branch_is_looked_at(made: Made) -> None:
    assert github(made.secret, "a/b", "refs/heads/next", default_branch="next").to(made.url).status_code == 202


def test_a_watched_branch_and_a_watched_tag_are_looked_at(
    made: Made, alice_app: App, remote: HostedRepository, work: Work
) -> None:
    for ref in ("next", "v1"):
        Repository.objects.update(ref=ref)
        assert github(made.secret, "a/b", "refs/heads/main").to(made.url).status_code == 204
    assert github(made.secret, "a/b", "refs/tags/v1").to(made.url).status_code == 202
    Repository.objects.update(ref="next")
    assert github(made.secret, "a/b", "refs/heads/next").to(made.url).status_code == 202


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"payload=", b'"push"', b"\xff"])
def test_a_body_that_cannot_be_read_is_an_error_of_its_own(made: Made, body: bytes) -> None:
    proof = {"X-Hub-Signature-256": f"sha256={sign(made.secret, body)}", "X-GitHub-Event": "push"}
    for content_type in ("application/json", "application/x-www-form-urlencoded"):
        answer = Sent(body, proof | {"Content-Type": content_type}).to(made.url)
        assert answer.status_code == 400
    assert made.log.last_error.startswith("The body is not")


@pytest.mark.parametrize("payload", [
    {"ref": 1}, {"ref": None, "repository": []}, {"push": 1}, {"push": {"changes": [1, {"new": {"type": []}}]}},
    {"after": 0}, {"project": {"default_branch": {}}},
])  # fmt: skip
def test_a_payload_of_other_types_is_no_push(made: Made, payload: dict[str, Any]) -> None:
    body = json.dumps(payload).encode()
    proof = {"X-Hub-Signature-256": f"sha256={sign(made.secret, body)}", "X-GitHub-Event": "push"}
    assert Sent(body, proof | {"Content-Type": "application/json"}).to(made.url).status_code == 204


def test_a_large_body_is_hashed_in_pieces_and_not_parsed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """An app that sends what blows up in memory hurts nobody; the look is asked for all the same."""
    pieces: list[int] = []
    update = Proofs.update

    def note(proofs: Proofs, piece: bytes) -> None:
        pieces.append(len(piece))
        update(proofs, piece)

    kept: list[int] = []
    push = receive._push

    def note_kept(hook: Hook, event: str, body: bytes, content_type: str) -> hooks.Push:
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


def test_a_body_over_the_limit_is_not_read(made: Made, client: Client) -> None:
    answer = client.generic("POST", made.url, b"x", headers={"Content-Length": str(26 << 20), "X-GitHub-Event": "push"})
    assert answer.status_code == 413
    assert client.generic("POST", made.url, b"x", headers={"Transfer-Encoding": "chunked"}).status_code == 411
    assert client.get(made.url).status_code == 405


def test_hooks_that_come_together_are_one_look(made: Made) -> None:
    for _ in range(20):
        assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert waiting() == [f"hint-{made.watch.repository_id}"]


def test_no_more_than_the_limit_is_taken_from_one_hook(made: Made, settings: Settings) -> None:
    settings.HOOK_RATE = 2
    for expected in (202, 202, 429):
        assert github(made.secret, "acme/handbook").to(made.url).status_code == expected
    assert github("wrong", "acme/handbook").to(made.url).status_code == 401


def test_a_forged_hook_uses_up_no_allowance(made: Made, settings: Settings) -> None:
    settings.HOOK_RATE = 1
    for _ in range(5):
        assert github("wrong", "acme/handbook").to(made.url).status_code == 401
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202


def test_forged_hooks_from_one_address_end(made: Made, settings: Settings) -> None:
    settings.ADDRESS_RATE = 2
    for expected in (401, 401, 429):
        assert github("wrong", "acme/handbook").to(made.url).status_code == expected


def test_without_redis_the_answer_is_503_at_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
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
def stopped_valkey(
    made: Made, data_dir: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[redis.Redis]:
    """A real server that takes connections and never answers, as the web process finds it after it has answered."""
    monkeypatch.undo()  # the fake one
    socket = data_dir / "valkey.sock"
    process = embedded.start(socket, persistent=False)
    settings.REDIS_URL = f"unix://{socket}"
    for cached in (queue.connection, queue.impatient_connection, rate.connection):
        cached.cache_clear()
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    process.send_signal(signal.SIGSTOP)
    yield queue.impatient_connection()
    process.kill()
    process.wait(timeout=10)


@pytest.mark.parametrize("limits", [60, 0])
def test_a_redis_that_hangs_is_waited_for_once_and_shortly(
    made: Made,
    stopped_valkey: redis.Redis,
    limits: int,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings.ADDRESS_RATE = settings.HOOK_RATE = limits
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
            assert sent.to(made.url).status_code == 503
            assert waited == [0.05]
    assert "Requests are not limited" not in caplog.text, "the limits of other requests have more patience"


def test_a_hook_needs_no_session_and_no_row(made: Made) -> None:
    with CaptureQueriesContext(database) as statements:
        assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert [statement["sql"].split()[0] for statement in statements] == ["SELECT"]


# The operator's hook for a whole host.


@pytest.fixture
def of_host(watch: Watch) -> tuple[str, str]:
    hook, secret = hooks.open_for_host(watch.repository.remote.address)
    return f"/hooks/{hook.public_id}", secret


def test_the_hook_of_a_host_is_for_every_watched_ref_of_the_pushed_repository(
    of_host: tuple[str, str], watch: Watch, bob_app: App, remote: HostedRepository, work: Work, send: Sender
) -> None:
    url, secret = of_host
    remote.point("next", remote.tip() or "")
    other = watches.watch(bob_app, remote.url, ref="next")
    work()
    assert send(secret, "acme/handbook").to(url).status_code == 202
    assert waiting() == [f"hint-{watch.repository_id}"]
    assert send(secret, "acme/handbook", "refs/heads/next").to(url).status_code == 202
    assert waiting() == [f"hint-{watch.repository_id}", f"hint-{other.repository_id}"]


def test_the_hook_of_a_host_is_not_for_others(of_host: tuple[str, str], watch: Watch, settings: Settings) -> None:
    url, secret = of_host
    for path in ("acme/else", "../acme/handbook", "", "acme/handbook/..", "@evil/handbook"):
        assert github(secret, path).to(url).status_code == 204
    settings.GIT_HOSTS = (*settings.GIT_HOSTS, "github.com")
    elsewhere, other_secret = hooks.open_for_host("github.com")
    assert github(other_secret, "acme/handbook").to(f"/hooks/{elsewhere.public_id}").status_code == 204


# How apps make their hooks.


def test_an_app_makes_changes_sees_and_ends_its_hook(
    alice_api: Api, bob_api: Api, remote: HostedRepository, work: Work
) -> None:
    repository = alice_api.watch(remote.url).json()["repository_id"]
    work()
    path = f"/api/repositories/{repository}/hook"
    assert alice_api.get(path).json()["code"] == "no-hook"
    first = alice_api.call("POST", path)
    assert first.status_code == 201
    first = first.json()
    assert first["url"].startswith("http://testserver/hooks/hook_")
    assert {each["host"] for each in first["hosts"]} == {"GitHub", "GitLab", "Gitea", "Forgejo", "Bitbucket"}
    assert all(first["secret"] in each["fields"].values() for each in first["hosts"])
    second = alice_api.call("POST", path.replace("/api/", "/api/v1/")).json()
    assert second["url"] == first["url"]
    assert second["secret"] != first["secret"]
    for secret in (first["secret"], second["secret"]):
        assert github(secret, "acme/handbook").to(first["url"]).status_code == 202
    assert github("wrong", "acme/handbook").to(first["url"]).status_code == 401
    state = alice_api.get(path).json()
    assert (state["accepted"], state["ignored"], state["refused"]) == (2, 0, 1)
    assert state["last_delivery"]["event"] == "push"
    assert state["last_error"]["message"]
    assert not any(secret in str(state) for secret in (first["secret"], second["secret"]))
    for other in (bob_api.get(path), bob_api.call("POST", path), bob_api.call("DELETE", path)):
        assert other.status_code == 404
    assert alice_api.call("DELETE", path).status_code == 204
    assert github(second["secret"], "acme/handbook").to(first["url"]).status_code == 401
    assert alice_api.call("DELETE", path).status_code == 404


def test_the_hook_stays_when_the_watch_is_renewed_and_goes_with_it(
    alice_app: App, made: Made, remote: HostedRepository
) -> None:
    watches.watch(alice_app, remote.url)
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    watches.unwatch(alice_app, Repository.objects.get().public_id)
    assert not Hook.objects.exists()
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 401


def test_the_secret_is_not_in_the_database_in_clear(made: Made) -> None:
    with database.cursor() as cursor:
        cursor.execute("SELECT secret, previous_secret FROM repositories_hook")
        assert made.secret not in str(cursor.fetchall())


# An app asks for a look.


def test_refresh_sends_what_differs(
    alice_api: Api, remote: HostedRepository, work: Work, alice: Receiver, settings: Settings
) -> None:
    repository = alice_api.watch(remote.url).json()["repository_id"]
    work()
    before = len(alice.requests)
    tip = remote.commit({"docs/start.md": "Start there.\n"})
    for _ in range(5):
        answer = alice_api.call("POST", f"/api/repositories/{repository}/refresh")
        assert answer.status_code == 202
        assert answer.json()["commit_sha"] != tip
    work()
    assert len(alice.requests) == before + 1
    assert alice.files_of(repository) == remote.files()
    settings.REFRESH_RATE = 1
    alice_api.call("POST", f"/api/repositories/{repository}/refresh")
    assert alice_api.call("POST", f"/api/repositories/{repository}/refresh").status_code == 429


def test_refresh_is_for_who_watches(alice_api: Api, bob_api: Api, remote: HostedRepository) -> None:
    repository = alice_api.watch(remote.url).json()["repository_id"]
    assert bob_api.call("POST", f"/api/repositories/{repository}/refresh").status_code == 404


def test_refresh_without_redis_says_so(
    alice_api: Api, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = alice_api.watch(remote.url).json()["repository_id"]
    gone = unreachable()
    monkeypatch.setattr(queue, "impatient_connection", lambda: gone)
    answer = alice_api.call("POST", f"/api/repositories/{repository}/refresh")
    assert (answer.status_code, answer.json()["code"]) == (503, "queue-unavailable")


def test_the_command_makes_a_hook_for_a_host_of_the_list(watch: Watch, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("host_hook", watch.repository.remote.address, "--json")
    made = json.loads(capsys.readouterr().out)
    assert github(made["secret"], "acme/handbook").to(made["path"]).status_code == 202
    with pytest.raises(CommandError, match="DOCORA_GIT_HOSTS does not allow elsewhere"):
        call_command("host_hook", "elsewhere.example.com")
