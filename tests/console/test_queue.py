"""The queue's pages: which job is where and for what, and what an operator does with it."""

import re

import pytest
import redis
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse
from rq.registry import StartedJobRegistry

from docora import settings
from docora.console import jobs
from docora.demo.githost import HostedRepository
from repositories import messages, watches
from repositories.base import queue
from repositories.models import App, Watch
from repositories.repo_lock import repo_lock
from tests.support.worker import Work, run_jobs

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

HOME = "/admin/django_rq/dashboard/"


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("admin"))
    return client


@pytest.fixture
def waiting(alice_app: App, remote: HostedRepository) -> Watch:
    """Watched a moment ago: its look is queued."""
    return watches.watch(alice_app, remote.url)


def words(answer: object) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.content.decode()))  # type: ignore[attr-defined]


def do(client: Client, job_id: str, verb: str) -> str:
    return words(client.post(reverse("admin:queue_act", args=[job_id, verb]), follow=True))


def test_a_waiting_job_says_what_it_is_for_and_links_there(admin: Client, waiting: Watch) -> None:
    page = admin.get(HOME)
    assert "snapshots: 1 waiting" in words(page)
    job_url = reverse("admin:queue_job", args=[messages.snapshot_job(waiting.repository_id)])
    assert f'href="{job_url}">Look at a repository</a>' in page.content.decode()
    repository_url = reverse("admin:repositories_repository_change", args=[waiting.repository_id])
    for url in (HOME, job_url):
        assert f'href="{repository_url}">acme/handbook</a>' in admin.get(url).content.decode()


@pytest.mark.parametrize("message", ["deliver", "send_notice", "send_complete", "announce_refusal"])
def test_jobs_of_a_watch_link_to_it(admin: Client, waiting: Watch, message: str) -> None:
    if message == "announce_refusal":
        messages.announce_refusal(waiting.pk)
    elif message == "deliver":
        messages.deliver(waiting.pk, lane=queue.DELIVERIES)
    elif message == "send_complete":
        messages.send_complete(waiting.pk, lane=queue.DELIVERIES)
    else:
        messages.send_notice("sync_failed", waiting.pk, lane=queue.DELIVERIES)
    page = admin.get(HOME, {"queue": "deliveries", "state": "waiting"}).content.decode()
    url = reverse("admin:repositories_watch_change", args=[waiting.pk])
    assert f'href="{url}">Alice&#x27;s search ← acme/handbook</a>' in page


def test_every_function_that_messages_start_has_its_purpose() -> None:
    assert jobs._PURPOSES.keys() == {name.rpartition(".")[2] for name in settings.JOB_FUNCTIONS}


def test_a_look_after_a_push_links_to_its_repository(admin: Client, waiting: Watch) -> None:
    messages.look_now(waiting.repository_id)
    page = admin.get(HOME, {"queue": "urgent", "state": "waiting"}).content.decode()
    assert reverse("admin:repositories_repository_change", args=[waiting.repository_id]) in page


def test_looking_moves_no_job(admin: Client, waiting: Watch) -> None:
    """rq's own counts clean up: an overdue job of a worker that is gone would be called failed."""
    registry = StartedJobRegistry(queue.SNAPSHOTS, connection=queue.connection())
    queue.connection().zadd(registry.key, {f"{messages.snapshot_job(waiting.repository_id)}:x": 1})
    before = {key: queue.connection().dump(key) for key in queue.connection().scan_iter("rq:*")}
    assert admin.get(HOME).status_code == 200
    assert {key: queue.connection().dump(key) for key in queue.connection().scan_iter("rq:*")} == before


def test_a_waiting_job_is_deleted_by_a_post_alone_and_it_is_logged(admin: Client, waiting: Watch) -> None:
    job_id = messages.snapshot_job(waiting.repository_id)
    assert admin.get(reverse("admin:queue_act", args=[job_id, "delete"])).status_code == 405
    assert queue.is_alive(job_id)
    assert f"Job {job_id} is deleted." in do(admin, job_id, "delete")
    assert not queue.is_alive(job_id)
    entry = LogEntry.objects.get()
    assert (entry.object_repr, entry.change_message) == (f"Queue: {job_id}", "Delete")


def test_a_post_without_the_token_of_the_form_changes_nothing(waiting: Watch) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("admin"))
    job_id = messages.snapshot_job(waiting.repository_id)
    assert client.post(reverse("admin:queue_act", args=[job_id, "delete"])).status_code == 403
    assert queue.is_alive(job_id)


def break_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look raises what nobody expects, once."""

    def explode(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is on fire")

    with monkeypatch.context() as patch:
        patch.setattr("snapshots.hinted.take_snapshot", explode)
        job = queue.fetch(queue.named(queue.SNAPSHOTS).job_ids[0])
        assert job
        job.retries_left = 0
        job.save()
        with pytest.raises(RuntimeError):
            run_jobs()


def test_a_failed_job_says_why_and_is_requeued(
    admin: Client, waiting: Watch, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = messages.snapshot_job(waiting.repository_id)
    break_down(monkeypatch)
    assert "snapshots: 1 failed" in words(admin.get(HOME))
    assert "RuntimeError: the disk is on fire" in words(admin.get(HOME, {"state": "failed"}))
    assert "Traceback" in words(admin.get(reverse("admin:queue_job", args=[job_id])))
    assert f"Job {job_id} is requeued." in do(admin, job_id, "requeue")
    assert f"job {job_id} has moved on" in do(admin, job_id, "requeue")
    work()
    waiting.refresh_from_db()
    assert waiting.status == "synced"


def test_all_failed_jobs_are_deleted_after_a_question(
    admin: Client, waiting: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_down(monkeypatch)
    url = reverse("admin:queue_act_on_all", args=["snapshots", "failed", "delete"])
    assert "1 job in snapshots, failed" in words(admin.get(url))
    assert "snapshots: 1 failed" in words(admin.get(HOME))
    assert "1 job in snapshots is deleted." in words(admin.post(url, follow=True))
    assert "1 failed" not in words(admin.get(HOME))


def test_a_job_that_is_put_off_says_until_when_and_is_brought_forward(
    admin: Client, waiting: Watch, work: Work, settings: object
) -> None:
    """A repository that another job holds puts it off, and nothing of that is shown."""
    settings.REPO_LOCK_WAIT = 0  # type: ignore[attr-defined]
    job_id = messages.snapshot_job(waiting.repository_id)
    with repo_lock(waiting.repository.clone_key, job_id="the-other-job"):
        work()
        shown = words(admin.get(HOME)) + words(admin.get(reverse("admin:queue_job", args=[job_id])))
    assert "snapshots: 1 later" in shown
    assert re.search(r"in \d s|due now", shown)
    assert not re.search(r"(?i)\block|the-other-job|retr(y|ies)", shown)
    assert f"Job {job_id} is brought forward." in do(admin, job_id, "run")
    work()
    waiting.refresh_from_db()
    assert waiting.status == "synced"


def test_a_job_that_has_ended_leads_back_to_the_queue(admin: Client, waiting: Watch, work: Work) -> None:
    work()
    url = reverse("admin:queue_job", args=[messages.snapshot_job(waiting.repository_id)])
    assert "has ended" in words(admin.get(url, follow=True))


def test_the_addresses_of_the_earlier_pages_lead_here(admin: Client) -> None:
    for old in ("queues/0/", "queues/2/failed/", "workers/0/", "workers/some-worker/"):
        assert admin.get(f"{HOME}{old}")["Location"] == HOME


def test_the_page_says_so_while_redis_is_away(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "repositories.base.connections.connect", lambda **_: redis.Redis.from_url("unix:///nowhere.sock", retry=None)
    )
    queue.connection.cache_clear()
    answer = admin.get(HOME)
    assert (answer.status_code, "Redis does not answer" in words(answer)) == (503, True)


def test_a_long_list_has_pages(admin: Client, waiting: Watch) -> None:
    for number in range(60):
        messages.announce_refusal(number + 1000)
    first = admin.get(HOME, {"queue": "deliveries", "state": "waiting"}).content.decode()
    second = admin.get(HOME, {"queue": "deliveries", "state": "waiting", "page": "2"}).content.decode()
    assert (first.count("/jobs/refusal-"), second.count("/jobs/refusal-")) == (50, 10)
    assert ">Further<" in first
    assert ">Earlier<" in second
