"""What is refused before it costs anything: too many requests, too large a body."""

import ipaddress
import time
from typing import Any

import pytest
import redis
from django.test import Client, RequestFactory

from docora.demo.githost import GitHost, HostedRepository
from docora.limits import rate
from docora.limits.client_address import client_address
from docora.processes.wsgi_bridge import _missing_body
from docora.short_requests import NO_ROOM, SHORT
from repositories.base import connections
from repositories.errors import RateLimited
from repositories.models import Repository
from tests.support.api import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


def statuses(api: Api, count: int, **headers: str) -> list[int]:
    return [api.call("GET", "/api/app", **headers).status_code for _ in range(count)]


def test_an_app_may_spend_its_minute_at_once_and_then_waits(
    alice_api: Api, bob_api: Api, settings: Any, valkey: redis.Redis
) -> None:
    settings.APP_RATE = 5
    assert statuses(alice_api, 6) == [200] * 5 + [429]
    answer = alice_api.get("/api/app")
    assert (answer.json()["code"], answer["Content-Type"]) == ("rate-limited", "application/problem+json")
    assert 1 <= int(answer["Retry-After"]) <= 12
    assert statuses(bob_api, 1) == [200]


def test_each_answer_says_what_is_left(
    alice_api: Api, remote: HostedRepository, settings: Any, valkey: redis.Redis
) -> None:
    settings.APP_RATE, settings.ADDRESS_RATE, settings.NEW_WATCHES_PER_HOUR = 3, 50, 20
    answer = alice_api.watch(remote.url)
    assert answer["RateLimit-Policy"] == '"address";q=50;w=60, "app";q=3;w=60, "new-watch";q=20;w=3600'
    assert answer["RateLimit"] == '"address";r=49;t=2, "app";r=2;t=20, "new-watch";r=19;t=180'
    assert statuses(alice_api, 3) == [200, 200, 429]
    refused = alice_api.get("/api/v1/app")
    assert (refused.status_code, '"app";r=0;t=' in refused["RateLimit"]) == (429, True)
    assert '"address"' in Client().get("/api/v1/app")["RateLimit"]


def test_without_a_limit_none_is_named(alice_api: Api, settings: Any, valkey: redis.Redis) -> None:
    settings.APP_RATE, settings.ADDRESS_RATE = 0, 0
    assert "RateLimit" not in alice_api.get("/api/v1/app")


def test_the_allowance_comes_back_with_time(settings: Any, valkey: redis.Redis) -> None:
    settings.ADDRESS_RATE = 2
    for _ in range(2):
        rate.spend_for_address("192.0.2.1")
    with pytest.raises(RateLimited):
        rate.spend_for_address("192.0.2.1")
    (key,) = valkey.keys("docora:rate:*")
    valkey.hincrbyfloat(key, "at", -31)
    rate.spend_for_address("192.0.2.1")


def test_guessing_tokens_is_limited_by_address(settings: Any, valkey: redis.Redis) -> None:
    settings.ADDRESS_RATE = 3
    assert statuses(Api("docora_guess"), 5) == [401, 401, 401, 429, 429]
    assert Client().get("/health").status_code == 200


def test_a_forged_header_does_not_evade_the_limit(settings: Any, valkey: redis.Redis) -> None:
    settings.ADDRESS_RATE = 3
    found = [Api("").call("GET", "/api/app", **{"X-Forwarded-For": f"203.0.113.{n}"}).status_code for n in range(5)]
    assert found == [401, 401, 401, 429, 429]


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("198.51.100.7", "203.0.113.1", "198.51.100.7"),
        ("10.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.1", "203.0.113.1"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.1, 10.0.0.2", "203.0.113.1"),
        ("::ffff:10.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "nonsense", "nonsense"),
    ],
)
def test_only_proxies_of_ours_are_believed(settings: Any, peer: str, forwarded: str, client: str) -> None:
    settings.TRUSTED_PROXIES = (ipaddress.ip_network("10.0.0.0/8"),)
    headers = {"X-Forwarded-For": forwarded} if forwarded else {}
    assert client_address(RequestFactory().get("/", headers=headers, REMOTE_ADDR=peer)) == client


@pytest.mark.parametrize(
    ("network", "peer", "is_trusted"),
    [
        ("::ffff:10.0.0.0/104", "::ffff:10.0.0.1", True),
        ("::ffff:10.0.0.0/104", "::ffff:11.0.0.1", False),
        ("::ffff:10.0.0.0/104", "2001:db8::1", False),
        ("::/0", "::ffff:10.0.0.1", True),
        ("0.0.0.0/0", "::ffff:10.0.0.1", True),
        ("2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::/32", "::ffff:10.0.0.1", False),
    ],
)
def test_a_proxy_with_an_ipv4_address_may_be_named_by_an_ipv4_or_an_ipv6_network(
    settings: Any, network: str, peer: str, is_trusted: bool
) -> None:
    settings.TRUSTED_PROXIES = (ipaddress.ip_network(network),)
    request = RequestFactory().get("/", headers={"X-Forwarded-For": "a client"}, REMOTE_ADDR=peer)
    assert client_address(request) == ("a client" if is_trusted else peer)


def test_an_ipv6_client_has_one_allowance_for_all_of_its_addresses(settings: Any, valkey: redis.Redis) -> None:
    settings.ADDRESS_RATE = 2
    rate.spend_for_address("2001:db8::1")
    rate.spend_for_address("2001:db8::2")
    with pytest.raises(RateLimited):
        rate.spend_for_address("2001:db8::3")
    rate.spend_for_address("2001:db8:0:1::1")


def test_without_redis_nobody_is_refused(
    alice_api: Api, settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings.APP_RATE = 1
    monkeypatch.setattr(connections, "connect", lambda **_: redis.Redis(unix_socket_path="/nowhere/valkey.sock"))
    started = time.monotonic()
    assert statuses(alice_api, 3) == [200] * 3
    assert time.monotonic() - started < 5
    assert caplog.text.count("not limited") == 1


def test_a_large_body_is_refused_unread(alice_api: Api, settings: Any) -> None:
    settings.MAX_BODY_BYTES = 100
    answer = alice_api.call("POST", "/api/repositories", {"github_url": "x" * 100})
    assert (answer.status_code, answer.json()["code"]) == (413, "body-too-large")
    assert alice_api.call("POST", "/api/repositories", {}).status_code == 422
    answer = alice_api.call("POST", "/api/repositories", **{"Transfer-Encoding": "chunked"})
    assert (answer.status_code, answer.json()["code"]) == (411, "length-required")


@pytest.mark.parametrize("place", ["", "/repo_0/verify", "/repo_0/refresh", "/repo_0/hook"])
def test_a_body_that_does_not_arrive_is_told_so(alice_api: Api, place: str) -> None:
    request: Any = {"content_type": "application/json", "wsgi.input": _missing_body()}
    answer = alice_api.client.generic("POST", f"/api/v1/repositories{place}", b"12 bytes long", **request)
    assert (answer.status_code, answer.json()["code"]) == (408, "body-incomplete")


@pytest.mark.parametrize("place", ["/api/v1/repositories", "/api/repositories/repo_0/verify", "/hooks/hook_0"])
def test_a_body_that_the_server_has_no_room_for_is_not_called_missing(
    alice_api: Api, place: str, settings: Any, valkey: redis.Redis
) -> None:
    settings.MAX_BODY_BYTES = 2 * SHORT
    request: Any = {"content_type": "application/json", "wsgi.input": _missing_body(), NO_ROOM: True}
    answer = alice_api.client.generic("POST", place, b"x" * (SHORT + 1), **request)
    assert (answer.status_code, answer.json()["code"], answer["Retry-After"]) == (503, "busy", "5")
    assert answer["Content-Type"] == "application/problem+json"
    assert "long bodies" in answer.json()["detail"]


def new_repository(git_host: GitHost, name: str) -> str:
    repository = git_host.create(f"acme/{name}")
    repository.commit({"a": name})
    return repository.url


def test_an_app_may_watch_so_many_repositories(alice_api: Api, bob_api: Api, git_host: GitHost, settings: Any) -> None:
    settings.MAX_WATCHES_PER_APP = 2
    first, second, third = (new_repository(git_host, name) for name in ("one", "two", "three"))
    assert [alice_api.watch(url).status_code for url in (first, second, first)] == [201] * 3
    answer = alice_api.watch(third)
    assert (answer.status_code, answer.json()["code"]) == (409, "too-many-watches")
    assert "2 repositories" in answer.json()["detail"]
    assert not Repository.objects.filter(url=third).exists()
    assert bob_api.watch(third).status_code == 201
    assert alice_api.call("DELETE", f"/api/repositories/{Repository.objects.get(url=first).public_id}")
    assert alice_api.watch(third).status_code == 201


def test_an_app_may_begin_so_many_watches_and_dry_runs_within_an_hour(
    alice_api: Api, bob_api: Api, git_host: GitHost, settings: Any, valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each may be a clone. Unwatching gives nothing back, or an app could clone the same repository again and again."""
    monkeypatch.setattr("docora.api.repositories.DRY_RUN_PATIENCE", 0)
    settings.NEW_WATCHES_PER_HOUR = 2
    first, second = (new_repository(git_host, name) for name in ("one", "two"))
    repository_id = alice_api.watch(first).json()["repository_id"]
    assert alice_api.watch(first).status_code == 201  # renews the watch
    assert [alice_api.watch(second, dry_run=True).status_code for _ in range(2)] == [202, 202]  # asks again
    alice_api.call("DELETE", f"/api/repositories/{repository_id}")
    ensured = alice_api.call("PUT", "/api/repositories", {"github_url": first})
    for refused in (alice_api.watch(first), alice_api.watch(first, dry_run=True), ensured):
        assert (refused.status_code, refused.json()["code"]) == (429, "too-many-new-watches")
        assert 1700 < int(refused["Retry-After"]) <= 1800
    assert bob_api.watch(first).status_code == 201
