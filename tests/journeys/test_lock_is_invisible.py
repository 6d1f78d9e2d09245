"""Waiting for a lock is nobody's business but the log's: not the database's, the admin's, or the API's."""

import logging
import re
from collections.abc import Callable

import pytest
from django.apps import apps
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client
from django.urls import NoReverseMatch, reverse

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories import accounts, watches
from repositories.base import queue
from repositories.models import App, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from tests.support.worker import run_jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

LOCK_WORDS = re.compile(r"\block(s|ed|ing)?\b|LockTimeout|LockLost|held by|repo_lock", re.IGNORECASE)
# When a repository was looked at, and will be again: that is asked before the lock, and is true.
TIMES = {"last_checked_at", "next_check_at"}


@pytest.fixture
def watch(alice_app: App, remote: HostedRepository) -> Watch:
    return watches.watch(alice_app, remote.url)


@pytest.fixture
def contention(watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[], None]:
    """Run every job while somebody else holds the clone's lock."""

    def contend() -> None:
        monkeypatch.setattr("django.conf.settings.REPO_LOCK_WAIT", 0.1)
        with repo_lock(watch.repository.clone_key, job_id="37"), caplog.at_level(logging.WARNING, "docora.repo_lock"):
            run_jobs()
        assert f"waiting for lock on {watch.repository.clone_key}, held by job 37" in caplog.text

    return contend


def every_row() -> dict[str, list[dict[str, object]]]:
    return {
        model._meta.label: [
            {name: value for name, value in row.items() if name not in TIMES}
            for row in model._default_manager.order_by("pk").values()
        ]
        for model in stored_models()
    }


def stored_models() -> list[type[Model]]:
    return [model for model in apps.get_models() if model._meta.managed]


def test_no_row_changes_and_no_failure_is_counted(watch: Watch, contention: Callable[[], None]) -> None:
    before = every_row()
    contention()
    assert every_row() == before


def test_the_work_is_done_when_the_lock_is_free(
    watch: Watch, contention: Callable[[], None], remote: HostedRepository
) -> None:
    contention()
    run_jobs(also_later_ones=True)
    watch.refresh_from_db()
    assert (watch.status, watch.synced_commit) == (WatchStatus.SYNCED, remote.tip())


def test_no_page_of_the_admin_speaks_of_locks(client: Client, watch: Watch, contention: Callable[[], None]) -> None:
    contention()
    client.force_login(User.objects.create_superuser("admin"))
    seen = [client.get(path) for path in admin_pages()]
    assert len(seen) > 5
    for page in seen:
        assert page.status_code == 200
        assert not LOCK_WORDS.search(page.content.decode()), page.request["PATH_INFO"]


def admin_pages() -> list[str]:
    pages = [reverse("admin:index")]
    for model in stored_models():
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        try:
            pages.append(reverse(f"{name}_changelist"))
        except NoReverseMatch:
            continue
        pages += [reverse(f"{name}_change", args=[pk]) for pk in model._default_manager.values_list("pk", flat=True)]
    return pages


def test_what_rq_shows_of_the_job_does_not_speak_of_locks(watch: Watch, contention: Callable[[], None]) -> None:
    contention()
    everything = b""
    connection = queue.connection()
    for key in connection.scan_iter("rq:*"):
        kind = connection.type(key)
        if kind == b"hash":
            everything += repr(connection.hgetall(key)).encode()
        elif kind == b"stream":
            everything += repr(connection.xrange(key)).encode()
    assert b"snapshots.jobs.take_snapshot" in everything
    assert not LOCK_WORDS.search(everything.decode())


def test_the_api_answers_as_ever(client: Client, watch: Watch, alice: Receiver) -> None:
    bearer = accounts.onboard("Bob", alice.url).bearer_token
    headers = {"Authorization": f"Bearer {bearer}"}
    path = f"/api/repositories/{watch.repository.public_id}"
    with repo_lock(watch.repository.clone_key, job_id="37"):
        body = {"github_url": watch.repository.url}
        assert client.post("/api/repositories", body, "application/json", headers=headers).status_code == 201
        assert client.delete(path, headers=headers).status_code == 204
        assert client.delete(path, headers=headers).status_code == 404
