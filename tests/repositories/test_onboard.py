"""`manage.py onboard`: registers, and warns of what will not work."""

import ipaddress
import json
import socket
from io import StringIO

import pytest
from django.core.management import call_command
from pytest_django import Settings

from repositories.base import dialling
from repositories.models import App
from tests.support.service import free_port

pytestmark = pytest.mark.django_db


@pytest.fixture
def local_network(settings: Settings) -> None:
    settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)


def onboard(base_url: str) -> tuple[str, str]:
    """What it prints, and what it warns of."""
    out, warnings = StringIO(), StringIO()
    call_command("onboard", "Docs", base_url, stdout=out, stderr=warnings)
    return out.getvalue(), warnings.getvalue()


def test_a_url_that_answers_needs_no_warning_and_the_database_is_named(local_network: None, settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        printed, warnings = onboard(f"http://127.0.0.1:{server.getsockname()[1]}/hooks")
    assert warnings == ""
    assert f"database      {settings.DATABASES['default']['NAME']}" in printed or "postgresql://" in printed


def test_a_private_address_is_warned_of_with_the_setting_and_registered(settings: Settings) -> None:
    printed, warnings = onboard("http://127.0.0.1:9000")
    assert "127.0.0.1 is not a public address; DOCORA_TRUSTED_NETWORKS can allow its network. The app is" in warnings
    app = App.objects.get()
    assert app.public_id in printed
    assert f"manage.py ping {app.public_id}" in warnings


def test_a_refused_connection_is_warned_of(local_network: None) -> None:
    port = free_port()
    assert f"connection refused by 127.0.0.1:{port}" in onboard(f"http://127.0.0.1:{port}/hooks")[1]


def test_a_name_that_does_not_resolve_is_warned_of(local_network: None) -> None:
    assert "the name of receiver.invalid cannot be resolved" in onboard("https://receiver.invalid/hooks")[1]


def test_one_address_that_answers_is_enough(local_network: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port)) for host in ("10.0.0.1", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
        assert dialling.obstacle(f"http://receiver.example:{port}") == ""
        del found[1]
        assert dialling.obstacle(f"http://receiver.example:{port}").startswith("10.0.0.1 is not a public address")


def test_a_redis_that_does_not_answer_is_warned_of(monkeypatch: pytest.MonkeyPatch, local_network: None) -> None:
    monkeypatch.setattr("repositories.management.commands.onboard.redis_answers", lambda: False)
    assert "does not answer: if Docora runs, it runs with other settings" in onboard("https://receiver.invalid")[1]


def test_warnings_stay_out_of_the_json() -> None:
    out = StringIO()
    call_command("onboard", "Docs", "http://127.0.0.1:9000", "--json", stdout=out, stderr=StringIO())
    assert set(json.loads(out.getvalue())) == {"app_id", "bearer_token", "webhook_key"}
