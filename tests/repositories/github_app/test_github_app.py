"""The operator's GitHub App: who may read through it, and tokens that end, are withdrawn or cannot be had."""

import ipaddress
import json
import socket
import time

import fakeredis
import pytest
from cryptography.fernet import Fernet
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.github_api import GitHubApi
from docora.demo.receiver import Receiver
from repositories import access, accounts, github_app, hooks, timing, watches
from repositories.base import queue
from repositories.errors import AccessDenied, HostUnavailable
from repositories.git.urls import RemoteUrl
from repositories.github_app import _api
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.look import take_snapshot
from snapshots.schedule import tick
from tests.snapshots.delivery.test_webhooks import server
from tests.support.api import Api
from tests.support.git_hooks import Sent, github, sign
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

APP_ID = "12345"


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture
def api(git_host: GitHost, private_key: rsa.RSAPrivateKey, settings: Settings) -> GitHubApi:
    """The App is installed at acme, for every repository."""
    public_key = private_key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    api = GitHubApi(git_host, app_id=APP_ID, public_key=public_key.decode())
    settings.GITHUB_APP_ID = APP_ID
    settings.GITHUB_APP_PRIVATE_KEY = private_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    settings.GITHUB_APP_API_URL = api.url
    api.install("acme")
    return api


@pytest.fixture
def secret(git_host: GitHost) -> HostedRepository:
    repository = git_host.create("acme/Secret", private_to={"somebody"})
    repository.commit({"a.md": "1"})
    return repository


@pytest.fixture
def watch(alice_app: App, api: GitHubApi, secret: HostedRepository, work: Work) -> Watch:
    """Alice watches without a token of her own."""
    accounts.grant(alice_app, "Acme/*")
    watch = watches.watch(alice_app, secret.url)
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    return watch


def look(watch: Watch, work: Work) -> None:
    take_snapshot(watch.repository_id, job_id="look")
    work()
    watch.refresh_from_db()


def test_a_granted_app_reads_a_private_repository_without_a_token(
    watch: Watch, alice: Receiver, api: GitHubApi, secret: HostedRepository
) -> None:
    assert alice.files_of(watch.repository.public_id) == secret.files()
    assert watch.repository.is_private
    assert len(api.tokens) == 1, "one token serves the watch, the fetch and the proof"


@pytest.mark.parametrize("pattern", ["other/*", "acme/secrets", "acme/secret.git"])
def test_an_app_without_a_grant_is_answered_as_without_a_github_app(
    alice_app: App, bob_app: App, api: GitHubApi, secret: HostedRepository, pattern: str
) -> None:
    accounts.grant(alice_app, pattern)
    accounts.grant(bob_app, "acme/*")
    with pytest.raises(AccessDenied) as denied:
        watches.watch(alice_app, secret.url)
    assert denied.value.http_status == 404
    assert api.requests == []


def test_a_grant_for_one_repository_is_for_that_one(
    alice_app: App, api: GitHubApi, secret: HostedRepository, git_host: GitHost
) -> None:
    accounts.grant(alice_app, "acme/secret")
    watches.watch(alice_app, secret.url)
    other = git_host.create("acme/other", private_to={"somebody"})
    other.commit({"a.md": "1"})
    with pytest.raises(AccessDenied):
        watches.watch(alice_app, other.url)


@pytest.mark.parametrize("pattern", ["*", "acme", "acme/", "*/secret", "acme/a*", "acme/a/b", "-x/*"])
def test_what_names_no_owner_is_no_pattern(alice_app: App, pattern: str) -> None:
    with pytest.raises(ValidationError):
        accounts.grant(alice_app, pattern)


def test_a_grant_is_for_the_host_of_the_github_app(
    alice_app: App, api: GitHubApi, secret: HostedRepository, settings: Settings
) -> None:
    """Somebody else may have the owner's name on another host."""
    accounts.grant(alice_app, "acme/*")
    settings.GITHUB_APP_API_URL = "https://api.github.com"
    with pytest.raises(AccessDenied):
        watches.watch(alice_app, secret.url)
    assert api.requests == []


def test_a_renamed_repository_is_read_by_its_number(
    api: GitHubApi, secret: HostedRepository, git_host: GitHost
) -> None:
    git_host.create("acme/renamed", private_to={"somebody"})
    git_host.remove(secret)
    api.move("acme/Secret", to="acme/renamed")
    assert github_app.token_of_installation(RemoteUrl.parse(secret.url)) == api.tokens[-1]


def test_a_repository_that_moved_to_another_owner_is_not_what_was_granted(
    alice_app: App, api: GitHubApi, secret: HostedRepository, git_host: GitHost
) -> None:
    """Although the GitHub App is installed at the other owner too."""
    accounts.grant(alice_app, "acme/*")
    api.install("victim")
    git_host.create("victim/secret", private_to={"somebody"})
    api.move("acme/Secret", to="victim/secret")
    with pytest.raises(AccessDenied):
        watches.watch(alice_app, secret.url)
    assert api.tokens == []


def test_the_token_is_renewed_before_its_end(watch: Watch, api: GitHubApi, fake_redis: fakeredis.FakeRedis) -> None:
    (key,) = fake_redis.keys("docora:github-app-token:*")
    assert 2900 < fake_redis.ttl(key) <= 3000
    fake_redis.delete(key)
    assert github_app.token_of_installation(watch.repository.remote) == api.tokens[-1]
    assert len(api.tokens) == 2


def test_a_token_whose_time_is_over_is_replaced_and_nobody_is_blamed(
    watch: Watch, alice: Receiver, api: GitHubApi, secret: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = watch.repository.remote
    monkeypatch.setattr(github_app, "_RENEWED_BEFORE_ITS_END", api.lifetime - 1.5)
    github_app.forget_token(remote)
    short_lived = github_app.token_of_installation(remote)
    assert github_app.kept_token(remote) == short_lived
    while github_app.kept_token(remote) is not None:
        time.sleep(0.05)
    api.withdraw_tokens()
    secret.commit({"b.md": "2"})
    look(watch, work)
    assert alice.files_of(watch.repository.public_id) == secret.files()
    assert (watch.status, watch.access_denied_at) == (WatchStatus.SYNCED, None)
    assert api.tokens[-1] != short_lived


def test_a_kept_token_of_other_encryption_keys_is_replaced(
    watch: Watch, api: GitHubApi, fake_redis: fakeredis.FakeRedis
) -> None:
    remote = watch.repository.remote
    kept = github_app.token_of_installation(remote)
    value = Fernet(Fernet.generate_key()).encrypt(kept.encode())
    (key,) = fake_redis.keys("docora:github-app-token:*")
    fake_redis.set(key, value, ex=3000)
    assert github_app.kept_token(remote) is None
    assert github_app.token_of_installation(remote) == api.tokens[-1] != kept


def test_a_token_that_ends_too_soon_is_not_kept(watch: Watch, api: GitHubApi) -> None:
    api.lifetime = 60
    github_app.forget_token(watch.repository.remote)
    one, another = (github_app.token_of_installation(watch.repository.remote) for _ in range(2))
    assert one != another


def test_the_token_is_nowhere_in_clear(watch: Watch, api: GitHubApi, fake_redis: fakeredis.FakeRedis) -> None:
    (token,) = api.tokens
    stored = [fake_redis.dump(key) for key in fake_redis.keys("*")]
    assert not [value for value in stored if value and token.encode() in value]
    assert not [row for row in Watch.objects.values() if token in repr(row)]


def test_a_token_that_was_withdrawn_is_replaced_and_nobody_is_blamed(
    watch: Watch, alice: Receiver, api: GitHubApi, secret: HostedRepository, work: Work
) -> None:
    api.withdraw_tokens()
    secret.commit({"a.md": "2"})
    look(watch, work)
    assert watch.access_denied_at is None
    assert alice.files_of(watch.repository.public_id) == secret.files()


def test_a_suspended_installation_is_refused_and_resumed(
    watch: Watch, alice: Receiver, api: GitHubApi, secret: HostedRepository, work: Work, fake_redis: fakeredis.FakeRedis
) -> None:
    api.suspend("acme")
    secret.commit({"a.md": "2"})
    look(watch, work)
    assert watch.access_denied_at
    assert watch.status == WatchStatus.FAILED
    api.suspend("acme", suspended=False)
    accounts.look_again(Watch.objects.all(), owner="ACME")
    work()
    watch.refresh_from_db()
    assert watch.access_denied_at is None
    assert alice.files_of(watch.repository.public_id) == secret.files()


def test_an_uninstalled_app_reads_nothing_more(
    watch: Watch, alice: Receiver, api: GitHubApi, secret: HostedRepository, work: Work
) -> None:
    before = alice.files_of(watch.repository.public_id)
    api.uninstall("acme")
    secret.commit({"a.md": "2"})
    look(watch, work)
    assert watch.access_denied_at
    assert alice.files_of(watch.repository.public_id) == before


def test_a_withdrawn_grant_ends_the_proof_at_once(
    watch: Watch, alice: Receiver, bob_app: App, secret: HostedRepository, work: Work
) -> None:
    """Although the GitHub App can still read for Bob."""
    accounts.grant(bob_app, "acme/secret")
    bobs = watches.watch(bob_app, secret.url)
    work()
    accounts.withdraw_grant(watch.app.github_grants.get())
    watch.refresh_from_db()
    assert not access.is_proven(watch)
    before = alice.files_of(watch.repository.public_id)
    secret.commit({"a.md": "2"})
    look(watch, work)
    bobs.refresh_from_db()
    assert (watch.status, bobs.status) == (WatchStatus.FAILED, WatchStatus.SYNCED)
    assert alice.files_of(watch.repository.public_id) == before


def test_a_token_of_its_own_is_used_before_a_grant(
    alice_app: App, api: GitHubApi, secret: HostedRepository, work: Work
) -> None:
    accounts.grant(alice_app, "acme/*")
    watches.watch(alice_app, secret.url, token="somebody")
    work()
    assert api.requests == []


@pytest.mark.parametrize("offset", [-3600.0, 3600.0])
def test_clocks_may_differ(alice_app: App, api: GitHubApi, secret: HostedRepository, offset: float) -> None:
    api.clock_offset = offset
    accounts.grant(alice_app, "acme/*")
    assert watches.watch(alice_app, secret.url)


def test_an_api_that_fails_is_a_host_that_does_not_answer(
    watch: Watch, api: GitHubApi, secret: HostedRepository, work: Work
) -> None:
    github_app.forget_token(watch.repository.remote)
    api.fails_with = 500
    secret.commit({"a.md": "2"})
    with pytest.raises(HostUnavailable):
        github_app.token_of_installation(watch.repository.remote)
    take_snapshot(watch.repository_id, job_id="look")
    watch.refresh_from_db()
    assert watch.access_denied_at is None, "nobody is blamed for it"
    assert watch.repository.last_error_code == "host-unavailable"
    assert "ghs_" not in watch.repository.last_error


def test_another_watch_goes_on_while_the_api_fails(
    watch: Watch, bob_app: App, bob: Receiver, api: GitHubApi, secret: HostedRepository, work: Work
) -> None:
    bobs = watches.watch(bob_app, secret.url, token="somebody")
    work()
    github_app.forget_token(watch.repository.remote)
    api.fails_with = 503
    secret.commit({"a.md": "2"})
    look(watch, work)
    assert bob.files_of(bobs.repository.public_id) == secret.files()


def test_an_unchanged_look_uses_the_kept_token(
    watch: Watch, api: GitHubApi, git_host: GitHost, secret: HostedRepository
) -> None:
    asked, looks = len(api.requests), git_host.count(secret, "ls-refs")
    Repository.objects.update(next_check_at=watch.created_at)
    tick()
    assert len(api.requests) == asked
    assert git_host.count(secret, "ls-refs") == looks + 1


def test_a_look_that_needs_a_new_token_is_left_to_a_worker(
    watch: Watch, api: GitHubApi, secret: HostedRepository, work: Work
) -> None:
    github_app.forget_token(watch.repository.remote)
    asked = len(api.requests)
    Repository.objects.update(next_check_at=watch.created_at)
    tick()
    assert len(api.requests) == asked
    work()
    assert len(api.requests) == asked + 2


def test_an_address_that_may_not_be_dialled_is_not(api: GitHubApi, watch: Watch, settings: Settings) -> None:
    github_app.forget_token(watch.repository.remote)
    settings.TRUSTED_NETWORKS = (ipaddress.ip_network("10.0.0.0/8"),)
    with pytest.raises(HostUnavailable, match=r"cannot be reached: 127\.0\.0\.1 is not a public address"):
        github_app.token_of_installation(watch.repository.remote)


def test_an_api_that_is_not_there_is_told_in_words(api: GitHubApi, watch: Watch, settings: Settings) -> None:
    github_app.forget_token(watch.repository.remote)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        settings.GITHUB_APP_API_URL = f"https://{address}"
        with pytest.raises(HostUnavailable, match=f"cannot be reached: connection refused by {address}\\.$"):
            github_app.token_of_installation(watch.repository.remote)


def test_an_api_that_sends_back_what_it_was_sent_puts_it_into_no_error(
    api: GitHubApi, watch: Watch, settings: Settings
) -> None:
    github_app.forget_token(watch.repository.remote)
    sent: list[bytes] = []

    def echo(connection: socket.socket) -> None:
        sent.append(connection.recv(1 << 16).partition(b"Bearer ")[2].split()[0])
        connection.sendall(sent[0] + b"\r\n\r\n")

    with server(echo) as url:
        settings.GITHUB_APP_API_URL = url
        with pytest.raises(HostUnavailable) as caught:
            github_app.token_of_installation(watch.repository.remote)
    assert sent[0].startswith(b"eyJ")
    assert "eyJ" not in str(caught.value)


def test_an_answer_that_comes_in_pieces_is_read_whole_and_one_without_end_is_not(
    watch: Watch, settings: Settings
) -> None:
    lengths: list[int] = []

    def answer_slowly(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        body = json.dumps({"id": 1, "padding": "x" * lengths[-1]}).encode()
        connection.sendall(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        connection.sendall(body[:10])
        time.sleep(0.2)
        connection.sendall(body[10:])

    with server(answer_slowly) as url:
        settings.GITHUB_APP_API_URL = url
        lengths.append(100)
        assert _api._call("GET", "/anything", None, now=time.time()).body["id"] == 1
        lengths.append(_api._LONGEST_ANSWER)
        with pytest.raises(HostUnavailable):
            _api._call("GET", "/anything", None, now=time.time())


def test_a_resting_host_is_left_alone_also_where_no_token_is_kept(watch: Watch, api: GitHubApi) -> None:
    github_app.forget_token(watch.repository.remote)
    timing.rest_host(watch.repository.remote.base, 1000)
    queue.connection().set("docora:last-reconciled", "now")
    Repository.objects.update(next_check_at=timezone.now())
    assert tick() == 0
    assert queue.named(queue.SNAPSHOTS).job_ids == []
    assert Repository.objects.get().next_check_at > timezone.now()


def test_a_dry_run_reads_through_it_too(
    alice_api: Api, api: GitHubApi, secret: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("docora.api.repositories.DRY_RUN_PATIENCE", 0)
    accounts.grant(App.objects.get(), "acme/*")
    assert alice_api.watch(secret.url, dry_run=True).status_code == 202
    work()
    assert alice_api.watch(secret.url, dry_run=True).json()["files"] == 1


def test_grants_are_made_and_withdrawn_in_the_admin(
    admin_client: Client, alice_app: App, api: GitHubApi, secret: HostedRepository, work: Work
) -> None:
    add = {"app": alice_app.pk, "pattern": "Acme/*"}
    assert admin_client.post(reverse("admin:repositories_githubgrant_add"), add).status_code == 302
    grant = alice_app.github_grants.get()
    assert grant.pattern == "acme/*"
    assert b"acme/*" in admin_client.get(reverse("admin:repositories_githubgrant_changelist")).content
    watch = watches.watch(alice_app, secret.url)
    work()
    delete = reverse("admin:repositories_githubgrant_delete", args=[grant.pk])
    assert admin_client.post(delete, {"post": "yes"}).status_code == 302
    watch.refresh_from_db()
    assert not access.is_proven(watch)


def _installation_event(event: str, owner: str, secret: str) -> Sent:
    body = json.dumps({"action": "suspend", "installation": {"id": 1, "account": {"login": owner}}}).encode()
    headers = {
        "Content-Type": "application/json",
        "X-GitHub-Event": event,
        "X-Hub-Signature-256": f"sha256={sign(secret, body)}",
    }
    return Sent(body, headers)


@pytest.mark.parametrize("event", ["installation", "installation_repositories"])
def test_the_news_of_an_installation_ends_and_gives_access_at_once(
    watch: Watch, alice: Receiver, api: GitHubApi, secret: HostedRepository, git_host: GitHost, work: Work, event: str
) -> None:
    hook, key = hooks.open_for_host(git_host.address)
    url = f"/hooks/{hook.public_id}"
    api.suspend("acme")
    assert _installation_event(event, "Acme", key).to(url).status_code == 202
    work()
    watch.refresh_from_db()
    assert watch.access_denied_at
    api.suspend("acme", suspended=False)
    secret.commit({"a.md": "2"})
    assert _installation_event(event, "Acme", key).to(url).status_code == 202
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert alice.files_of(watch.repository.public_id) == secret.files()


def test_the_news_of_an_installation_is_for_the_host_of_the_github_app_and_needs_a_proof(
    watch: Watch, git_host: GitHost, settings: Settings, work: Work
) -> None:
    hook, key = hooks.open_for_host(git_host.address)
    url, sent = f"/hooks/{hook.public_id}", _installation_event("installation", "acme", key)
    assert sent.without_proof().to(url).status_code == 401
    settings.GITHUB_APP_ID = ""
    assert sent.to(url).status_code == 204
    of_the_watch, key = hooks.open_for(watch)
    assert _installation_event("installation", "acme", key).to(f"/hooks/{of_the_watch.public_id}").status_code == 204
    work()
    watch.refresh_from_db()
    assert access.is_proven(watch)


def test_the_webhook_of_the_github_app_is_proven_by_the_secret_of_the_setting(
    watch: Watch, api: GitHubApi, secret: HostedRepository, alice: Receiver, settings: Settings, work: Work
) -> None:
    url, key = "/hooks/github-app", "the webhook secret of the app"
    push, news = github(key, "acme/Secret"), _installation_event("installation", "acme", key)
    assert push.to(url).status_code == 401
    settings.GITHUB_APP_WEBHOOK_SECRET = key
    assert github("another secret of that app", "acme/Secret").to(url).status_code == 401
    secret.commit({"a.md": "2"})
    assert push.to(url).status_code == 202
    work()
    assert alice.files_of(watch.repository.public_id) == secret.files()
    api.suspend("acme")
    assert news.to(url).status_code == 202
    work()
    watch.refresh_from_db()
    assert watch.access_denied_at
    settings.GITHUB_APP_ID = ""
    assert push.to(url).status_code == 401
