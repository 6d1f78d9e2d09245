"""What load balancers and monitors ask for, without a login."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

import docora


def test_health_says_ok_when_and_for_how_long(client: Client) -> None:
    before = datetime.now(UTC)
    answer = client.get("/health")
    assert answer.status_code == 200
    assert set(answer.json()) == {"status", "timestamp", "uptime"}
    assert answer.json()["status"] == "ok"
    assert answer.json()["uptime"] >= 0
    assert answer.json()["timestamp"].endswith("Z")
    assert abs(datetime.fromisoformat(answer.json()["timestamp"]) - before) < timedelta(minutes=1)


def test_version_is_the_installed_one(client: Client) -> None:
    assert client.get("/version").json() == {"version": docora.__version__}


@pytest.mark.parametrize("path", ["/health", "/version"])
def test_the_answer_is_never_cached_and_only_asked_for(client: Client, path: str) -> None:
    assert "no-store" in client.get(path)["Cache-Control"]
    assert client.head(path).status_code == 200
    assert client.post(path).status_code == 405
