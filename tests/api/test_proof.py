"""An app sees what its own token can read: the proof of that, and what is shown without one."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.limits import seats
from repositories.models import App, Repository, Watch
from repositories.watches import request_snapshot
from snapshots.models import Snapshot
from tests.support.api import Api

pytestmark = pytest.mark.django_db(transaction=True)

Work = Callable[..., None]
HOUR = timedelta(hours=1)


@pytest.fixture
def private(git_host: GitHost) -> HostedRepository:
    private = git_host.create("acme/secret", private_to={"alice-token", "bob-token"})
    private.commit({"plan.md": "first"})
    return private


@pytest.fixture
def door(alice_api: Api, bob_api: Api, private: HostedRepository, work: Work, settings: Any) -> str:
    """Both apps watch it. An hour ago Alice's endpoint asked for a pause; since then only Bob's token was tried."""
    settings.MAX_FILE_BYTES = 10
    repository_id = alice_api.watch(private.url, "alice-token").json()["repository_id"]
    bob_api.watch(private.url, "bob-token")
    work()
    alice = App.objects.get(name="Alice's search")
    App.objects.filter(pk=alice.pk).update(resting_until=timezone.now() + HOUR)
    alice.watches.update(access_proven_at=timezone.now() - HOUR)
    Snapshot.objects.update(taken_at=timezone.now() - HOUR)
    private.commit({"plan.md": "second", "takeover-of-initech.md": "longer than ten bytes"})

    request_snapshot(Repository.objects.get())
    work()
    assert Repository.objects.get().sequence == 2
    return f"/api/repositories/{repository_id}"


def test_a_list_shows_what_was_known_at_the_last_proof_and_asks_no_host(
    alice_api: Api, bob_api: Api, git_host: GitHost, door: str
) -> None:
    first, second = Snapshot.objects.order_by("sequence").values_list("commit_sha", flat=True)
    asked = len(git_host.requests)
    (shown,) = alice_api.get("/api/repositories").json()["repositories"]
    assert (shown["commit_sha"], shown["files"]) == (first, 1)
    (shown,) = bob_api.get("/api/repositories").json()["repositories"]
    assert shown["commit_sha"] == second
    assert len(git_host.requests) == asked


def test_a_revoked_token_reads_neither_new_commits_nor_names(
    alice_api: Api, bob_api: Api, git_host: GitHost, private: HostedRepository, door: str
) -> None:
    git_host.revoke(private, "alice-token")
    shown = alice_api.get(door).json()
    assert (shown["commit_sha"], shown["files"], shown["left_out"]) == (None, None, [])
    assert (shown["status"], shown["last_error"]["code"]) == ("failed", "no-access")
    assert "initech" in bob_api.get(door).content.decode()
    secrets = [*Snapshot.objects.values_list("commit_sha", flat=True), "initech"]
    for path in (door, "/api/repositories"):
        text = alice_api.get(path).content.decode()
        assert not [secret for secret in secrets[1:] if secret in text]


def test_reading_one_repository_renews_an_old_proof(alice_api: Api, door: str) -> None:
    shown = alice_api.get(door).json()
    assert shown["commit_sha"] == Repository.objects.get().commit_sha
    assert [item["path"] for item in shown["left_out"]] == ["takeover-of-initech.md"]


def test_a_state_is_shown_as_last_proven_while_the_host_is_down(alice_api: Api, git_host: GitHost, door: str) -> None:
    with git_host.faults.put(GitFault(status=503)):
        shown = alice_api.get(door).json()
    assert shown["commit_sha"] == Snapshot.objects.get(sequence=1).commit_sha
    Repository.objects.update(consecutive_failures=1)
    asked = len(git_host.requests)
    assert alice_api.get(door).json()["commit_sha"] == shown["commit_sha"]
    assert len(git_host.requests) == asked


def test_a_fresh_proof_shows_the_newest_without_asking(alice_api: Api, git_host: GitHost, door: str) -> None:
    Watch.objects.update(access_proven_at=timezone.now())
    asked = len(git_host.requests)
    assert alice_api.get(door).json()["commit_sha"] == Repository.objects.get().commit_sha
    assert len(git_host.requests) == asked


def test_a_token_that_is_revoked_while_its_app_waits_for_changes_reads_none(
    alice_api: Api, git_host: GitHost, private: HostedRepository, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursor = alice_api.get(f"{door}/changes").json()["cursor"]

    def revoke_meanwhile(condition: Callable[[], bool], *, seconds: float) -> None:
        git_host.revoke(private, "alice-token")
        Watch.objects.update(access_proven_at=None)

    monkeypatch.setattr(seats, "wait_until", revoke_meanwhile)
    answer = alice_api.get(f"{door}/changes?since={cursor}&wait=30")
    assert (answer.status_code, answer.json()["code"]) == (403, "no-access")
