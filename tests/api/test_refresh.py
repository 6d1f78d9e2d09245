"""POST /repositories/{id}/refresh: an app asks for a look."""

import pytest
from pytest_django import Settings

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories.base import queue
from tests.support.api import Api
from tests.support.hook_cast import unreachable
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_pauses")]


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
