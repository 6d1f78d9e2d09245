"""dry_run: what would be sent, without watching anything."""

import json
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from django.db import connection
from rq import Queue
from rq.serializers import JSONSerializer

from docora.api import repositories as endpoints
from docora.demo.githost import GitFault, GitHost, HostedRepository
from repositories.base import queue
from repositories.models import Repository
from snapshots import dry_run
from tests.support.api import Api

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no worker beside these tests: nobody answers while one waits."""
    monkeypatch.setattr(endpoints, "DRY_RUN_PATIENCE", 0)


def ask(api: Api, url: str, token: str | None = None, **options: Any) -> Any:
    return api.watch(url, token, dry_run=True, **options)


def test_a_new_repository_is_counted_by_a_worker_and_leaves_nothing(
    alice_api: Api, remote: HostedRepository, work: Callable[..., None], settings: Any
) -> None:
    answer = ask(alice_api, remote.url, exclude=["*.png"])
    assert (answer.status_code, answer["Retry-After"]) == (202, "5")
    work()
    answer = ask(alice_api, remote.url, exclude=["*.png"])
    assert answer.status_code == 200
    sizes = [len(content) for path, content in remote.files().items() if path != "logo.png"]
    assert answer.json() == {"commit_sha": remote.tip(), "files": 2, "bytes": sum(sizes)}
    assert not Repository.objects.exists()
    assert not (settings.REPOS_BASE_PATH / "@dry-run").exists()


def test_a_known_repository_is_counted_without_another_clone(
    alice_api: Api, bob_api: Api, git_host: GitHost, remote: HostedRepository, work: Callable[..., None]
) -> None:
    alice_api.watch(remote.url)
    work()
    fetches = git_host.count(remote, "fetch")
    ask(bob_api, remote.url, include=["docs/"])
    work()
    assert ask(bob_api, remote.url, include=["docs/"]).json()["files"] == 1
    assert git_host.count(remote, "fetch") == fetches


def test_the_question_travels_sealed(alice_api: Api, git_host: GitHost) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    assert ask(alice_api, private.url, "ghp_alice").status_code == 202
    (job,) = Queue(queue.SNAPSHOTS, connection=queue.connection(), serializer=JSONSerializer).jobs
    (sealed,) = job.args
    assert "ghp_alice" not in sealed
    assert dry_run.Question.unseal(sealed).token == "ghp_alice"


def test_another_app_does_not_get_the_answer(
    alice_api: Api, bob_api: Api, git_host: GitHost, work: Callable[..., None]
) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"a": "b"})
    ask(alice_api, private.url, "ghp_alice")
    work()
    assert ask(alice_api, private.url, "ghp_alice").status_code == 200
    assert ask(bob_api, private.url, "ghp_alice").status_code == 202
    assert ask(bob_api, private.url).status_code == 404


def test_a_failure_to_count_is_told_once(
    alice_api: Api, git_host: GitHost, remote: HostedRepository, work: Callable[..., None]
) -> None:
    ask(alice_api, remote.url)
    with git_host.faults.put(GitFault(kinds={"fetch"}, status=500)):
        work()
    answer = ask(alice_api, remote.url)
    assert (answer.status_code, answer.json()["code"]) == (502, "git-failed")
    assert ask(alice_api, remote.url).status_code == 202


def test_who_waits_gets_the_answer_as_soon_as_it_is_there(
    alice_api: Api, remote: HostedRepository, work: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "DRY_RUN_PATIENCE", 20)
    monkeypatch.setattr("docora.limits.seats._PAUSE", 0.05)
    found = dry_run.Estimate(commit_sha="1" * 40, files=7, bytes=70)
    monkeypatch.setattr(queue, "enqueue", lambda _queue, _function, sealed, **_: _answer_soon(sealed, found))
    assert ask(alice_api, remote.url).json() == {"commit_sha": "1" * 40, "files": 7, "bytes": 70}


def _answer_soon(sealed: str, found: dry_run.Estimate) -> None:
    def answer() -> None:
        queue.connection().set(dry_run.Question.unseal(sealed).key, json.dumps(asdict(found)))
        connection.close()

    threading.Timer(0.2, answer).start()
