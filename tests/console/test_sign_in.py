"""Signing in to the admin: limited, logged, and with a session that was not there before."""

import ipaddress
from typing import Any

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from repositories.base import connections

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

GUESS = "guess"
PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def admin_user() -> User:
    return User.objects.create_superuser("admin", password=PASSWORD)


def sign_in(client: Client, name: str = "admin", password: str = GUESS, address: str = "192.0.2.1") -> Any:
    form = {"username": name, "password": password, "next": "/admin/"}
    return client.post(reverse("admin:login"), form, REMOTE_ADDR=address)


def test_guessing_the_password_of_a_name_ends_from_every_address(
    client: Client, settings: Any, valkey: redis.Redis
) -> None:
    settings.LOGIN_RATE = 3
    statuses = [sign_in(client, address=f"192.0.2.{number}").status_code for number in range(5)]
    assert statuses == [200, 200, 200, 429, 429]
    refused = sign_in(client, password=PASSWORD, address="192.0.2.99")
    assert refused.status_code == 429
    assert 1 <= int(refused["Retry-After"]) <= 20
    assert "Try again in" in refused.content.decode()
    assert "_auth_user_id" not in client.session


def test_guessing_names_from_one_address_ends(client: Client, settings: Any, valkey: redis.Redis) -> None:
    settings.LOGIN_RATE = 3
    assert [sign_in(client, f"user {number}").status_code for number in range(4)] == [200, 200, 200, 429]
    assert sign_in(client, password=PASSWORD, address="192.0.2.2").status_code == 302


@pytest.mark.parametrize("spelling", ["\uff41dmin", " admin", "admin\t"])
def test_another_spelling_of_the_name_is_the_same_user(
    client: Client, settings: Any, valkey: redis.Redis, spelling: str
) -> None:
    settings.LOGIN_RATE = 1
    sign_in(client, address="192.0.2.1")
    assert sign_in(client, spelling, PASSWORD, address="192.0.2.2").status_code == 429


def test_a_forged_header_does_not_change_the_address(client: Client, settings: Any, valkey: redis.Redis) -> None:
    settings.LOGIN_RATE = 2
    settings.TRUSTED_PROXIES = (ipaddress.ip_network("10.0.0.0/8"),)
    for number in range(2):
        form = {"username": f"user {number}", "password": "guess"}
        client.post(reverse("admin:login"), form, headers={"X-Forwarded-For": f"203.0.113.{number}"})
    answer = client.post(reverse("admin:login"), form, headers={"X-Forwarded-For": "203.0.113.9"})
    assert answer.status_code == 429


def test_the_log_of_actions_tells_of_it_once_a_minute(client: Client, settings: Any, valkey: redis.Redis) -> None:
    settings.LOGIN_RATE = 1
    for _ in range(5):
        sign_in(client)
    (entry,) = LogEntry.objects.all()
    assert (entry.user.username, entry.change_message) == (
        "admin",
        "Sign-in refused, too many attempts, from 192.0.2.1",
    )
    sign_in(client, "my password, by mistake")
    assert LogEntry.objects.count() == 1


def test_without_redis_everybody_may_sign_in(client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.LOGIN_RATE = 1
    monkeypatch.setattr(connections, "connect", lambda **_: redis.Redis(unix_socket_path="/nowhere/valkey.sock"))
    sign_in(client)
    assert sign_in(client, password=PASSWORD).status_code == 302


def test_a_session_that_was_planted_before_is_not_the_one_that_is_signed_in(client: Client) -> None:
    planted = client.session
    planted["planted"] = True
    planted.save()
    key = planted.session_key or ""
    client.cookies["sessionid"] = key
    csrf_before = client.get(reverse("admin:login")).cookies["csrftoken"].value
    answer = sign_in(client, password=PASSWORD)
    cookie = answer.cookies["sessionid"]
    assert cookie.value != key
    assert not planted.exists(key)
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
    assert answer.cookies["csrftoken"].value != csrf_before
    attacker = Client()
    attacker.cookies["sessionid"] = key
    assert "/login/" in attacker.get(reverse("admin:index"))["Location"]


def test_signing_out_ends_the_session_on_the_server(client: Client) -> None:
    sign_in(client, password=PASSWORD)
    stolen = client.cookies["sessionid"].value
    client.post(reverse("admin:logout"))
    thief = Client()
    thief.cookies["sessionid"] = stolen
    assert "/login/" in thief.get(reverse("admin:index"))["Location"]
