"""The admin's pages: each opens, shows what it promises, and shows no secret and nothing of locks."""

import re

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from docora.console.roles import OPERATOR, VIEWER
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import watches
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from snapshots.models import Delivery, Parked, Snapshot
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)

LISTS = [
    "repositories_app",
    "repositories_repository",
    "repositories_watch",
    "repositories_hook",
    "snapshots_snapshot",
    "snapshots_delivery",
    "snapshots_parked",
    "auth_user",
    "auth_group",
    "admin_logentry",
]
LINK = re.compile(
    r'href="(/admin/(?:[a-z]+/[a-z]+/\d+/(?:change|history|do/[a-z_]+)|django_rq/dashboard/jobs/[\w-]+)/)'
)
QUEUE_LINES = ["waiting", "running", "later", "failed"]


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("admin"))
    return client


@pytest.fixture
def private_watch(alice_app: App, alice: Receiver, git_host: GitHost, work: Work) -> Watch:
    """In sync, but for one parked file."""
    private = git_host.create("acme/secret", private_to={"ghp_alices_token"})
    private.commit({"plan.md": "one", "huge.md": "too much"})
    with alice.faults.put(ReceiverFault(path="huge.md", status=413)):
        watch = watches.watch(alice_app, private.url, token="ghp_alices_token")
        work()
    return watch


def page_of(client: Client, row: App | Repository | Watch | Snapshot | Delivery | Parked) -> str:
    answer = client.get(reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk]))
    assert answer.status_code == 200
    return answer.content.decode()


def every_page(client: Client) -> list[tuple[str, str]]:
    """Each list, each row's page, each operation's page, the overview, the queue's pages."""
    found = [reverse("admin:index"), reverse("admin:repositories_app_add")]
    found += [reverse(f"admin:{name}_changelist") for name in LISTS]
    found += [reverse("admin:django_rq_dashboard_changelist")]
    found += [reverse("admin:django_rq_dashboard_changelist", query={"state": line}) for line in QUEUE_LINES]
    pages: list[tuple[str, str]] = []
    for url in found:
        answer = client.get(url)
        assert answer.status_code == 200, url
        pages.append((url, answer.content.decode()))
        links = LINK.findall(pages[-1][1])
        found += [link for link in dict.fromkeys(links) if link not in found]
    return pages


def test_every_page_opens_shows_no_secret_and_loads_nothing_from_elsewhere(admin: Client, private_watch: Watch) -> None:
    app = private_watch.app
    pages = every_page(admin)
    assert len(pages) > 40
    for url, text in pages:
        for secret in ("ghp_alices_token", app.webhook_key, app.bearer_hash):
            assert secret not in text, url
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="([^"]*)"', text)
        assert not [address for address in loaded if not address.startswith(("/", "data:"))], url


@pytest.mark.any_database  # the lock is in Redis
def test_no_page_speaks_of_locks_while_one_is_contended(
    admin: Client, private_watch: Watch, settings: object, work: Work
) -> None:
    settings.REPO_LOCK_WAIT = 0  # type: ignore[attr-defined]
    repository = private_watch.repository
    Repository.objects.update(needs_repair=True)
    with repo_lock(repository.clone_key, job_id="the-other-job"):
        watches.request_snapshot(repository)
        work()
        pages = every_page(admin)
    for url, page in pages:
        text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)
        words = re.sub(r"<[^>]*>", " ", text)
        assert not re.search(r"(?i)\block(s|ed|ing)?\b|contend|contention|the-other-job|holder|waiter", words), url
    private_watch.refresh_from_db()
    assert (private_watch.status, private_watch.last_error) == (WatchStatus.SYNCED, "")


def test_a_delivery_shows_its_request_rebuilt_from_git(admin: Client, private_watch: Watch) -> None:
    delivery = Delivery.objects.get(path="plan.md")
    page = page_of(admin, delivery)
    assert f"{private_watch.app.base_url}/create" in page
    assert delivery.message_id in page
    assert "&quot;content&quot;:&quot;one&quot;" in page


@pytest.mark.parametrize(("role", "is_shown"), [(OPERATOR, True), (VIEWER, False)])
def test_a_viewer_sees_the_delivery_but_not_what_the_file_contains(
    client: Client, private_watch: Watch, role: str, is_shown: bool
) -> None:
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    client.force_login(user)
    page = page_of(client, Delivery.objects.get(path="plan.md"))
    assert "plan.md" in page
    assert ("&quot;content&quot;:&quot;one&quot;" in page) == is_shown


def test_a_refused_delivery_shows_the_answer(admin: Client, private_watch: Watch) -> None:
    page = page_of(admin, Delivery.objects.get(path="huge.md"))
    assert "413" in page


def test_a_delivery_says_so_when_the_clone_is_gone(admin: Client, private_watch: Watch, tmp_path: object) -> None:
    delivery = Delivery.objects.get(path="plan.md")
    Repository.objects.update(clone_key="acme/elsewhere")
    page = page_of(admin, delivery)
    assert "not in the clone any more" in page
    assert "plan.md" in page


def test_deliveries_are_found_by_path_app_repository_and_status(admin: Client, private_watch: Watch) -> None:
    def found(words: str) -> list[str]:
        answer = admin.get(reverse("admin:snapshots_delivery_changelist"), {"q": words})
        return sorted(row.path for row in answer.context["cl"].result_list)

    assert found("plan") == ["plan.md"]
    assert found("alice secret") == ["huge.md", "plan.md"]
    assert found("413") == ["huge.md"]
    assert found("nobody") == []


def test_a_watch_shows_its_progress_reason_and_hint(admin: Client, private_watch: Watch) -> None:
    Watch.objects.update(status=WatchStatus.FAILED, last_error_code="no-access", last_error="The host said no.")
    page = page_of(admin, private_watch)
    assert "1 of 2" in page
    assert "The host said no." in page
    assert "Ask for a new token" in page
    assert "huge.md" in page


def test_a_repository_shows_its_snapshots_and_counts_its_circuit_down(
    admin: Client, alice_app: App, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url)
    work()
    remote.commit({"README.md": "changed", "docs/start.md": None})
    watches.request_snapshot(watch.repository)
    work()
    page = page_of(admin, watch.repository)
    assert '+0</span> ~1 <span class="dc-bad-text">-1' in page
    changes = page_of(admin, Snapshot.objects.get(sequence=2))
    assert re.search(r"delete</td><td[^>]*>docs/start.md", changes)
    assert re.search(r"update</td><td[^>]*>README.md", changes)
