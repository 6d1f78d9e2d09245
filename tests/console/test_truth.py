"""What the console says is what the receiver and the database know."""

import re
from collections.abc import Callable
from datetime import timedelta
from io import StringIO

import pytest
import redis
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings
from rq import Queue
from rq.serializers import JSONSerializer

from docora import condition
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from docora.processes.preflight import StartError, check_keys
from repositories import accounts, watch_state, watches
from repositories.base import queue
from repositories.errors import AccessDenied
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import Delivery
from tests.support.api import Api

pytestmark = pytest.mark.django_db(transaction=True)

Work = Callable[..., None]


@pytest.fixture(autouse=True)
def fresh_connection(fake_redis: redis.Redis) -> None:
    condition._impatient_connection.cache_clear()


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("admin"))
    return client


def page(client: Client, name: str, *args: object) -> str:
    return client.get(reverse(f"admin:{name}", args=args)).content.decode()


class TestWrongKeys:
    @pytest.fixture(autouse=True)
    def another_key(self, alice_app: App, settings: Settings) -> None:
        settings.ENCRYPTION_KEYS = [Fernet.generate_key().decode()]

    def test_ready_names_the_variable(self, client: Client) -> None:
        answer = client.get("/ready")
        assert answer.status_code == 503
        assert answer.json()["checks"]["keys"].startswith("ENCRYPTION_KEYS does not decrypt")

    def test_nothing_starts(self) -> None:
        with pytest.raises(StartError, match="ENCRYPTION_KEYS"):
            check_keys()

    def test_check_reports_it(self) -> None:
        with pytest.raises(CommandError, match=r"docora\.E001"):
            call_command("check", databases=["default"])

    def test_a_rotation_says_it_in_a_line(self) -> None:
        with pytest.raises(CommandError, match="ENCRYPTION_KEYS does not decrypt"):
            call_command("rotate_encryption")


def test_an_app_that_refused_every_file_has_none(
    admin: Client, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(status=422)):
        watch = watches.watch(alice_app, remote.url)
        work()
    assert not alice.files
    shown = Api(accounts.rotate_bearer_token(alice_app)).get(f"/api/repositories/{watch.repository.public_id}").json()
    assert (shown["files"], shown["acknowledged"], shown["parked"]) == (3, 0, 3)
    for shown in (page(admin, "repositories_watch_changelist"), page(admin, "repositories_watch_change", watch.pk)):
        assert "0 of 3, 3 parked" in shown
        assert 'dc-warn">0 of 3' in shown
        assert "ago</time> but for 3 parked files" in shown
    assert re.search(r"no file of <a [^>]*><code [^>]*>\w{10}</code></a>", shown)


def test_a_refused_update_still_counts_as_a_file_that_the_app_has(
    admin: Client, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": "refused"})
    with alice.faults.put(ReceiverFault(status=422)):
        watches.ask_for_snapshot(watch.repository)
        work()
    assert len(alice.files[watch.repository.public_id]) == 3
    assert "3 of 3, 1 parked" in page(admin, "repositories_watch_changelist")
    assert "</code></a> but for 1 parked file<" in page(admin, "repositories_watch_change", watch.pk)


def test_a_commit_of_which_nothing_arrived_does_not_look_delivered(
    admin: Client, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": "changed", "logo.png": None, "new.md": "new"})
    with alice.faults.put(ReceiverFault(status=500)):
        watches.ask_for_snapshot(watch.repository)
        work()
    assert set(alice.files[watch.repository.public_id]) == {"README.md", "docs/start.md", "logo.png"}
    for shown in (page(admin, "repositories_watch_changelist"), page(admin, "repositories_watch_change", watch.pk)):
        assert "3, not yet all as in the newest commit" in shown
        assert "of 3" not in shown
    output = StringIO()
    call_command("watches", stdout=output)
    assert "3, not all newest" in output.getvalue()


class TestDisabledApp:
    @pytest.fixture(autouse=True)
    def disabled(self, watch: Watch) -> None:
        accounts.disable_app(watch.app, "The endpoint answered 410 Gone.")

    def test_its_watches_say_so_and_offer_nothing_that_sends(self, admin: Client, watch: Watch) -> None:
        shown = page(admin, "repositories_watch_change", watch.pk)
        assert 'dc-bad">disabled' in shown
        for button in ("Retry", "Resync", "Redeliver since"):
            assert f">{button}" not in shown
        assert 'dc-bad">disabled' in page(admin, "repositories_watch_changelist")

    def test_the_overview_lists_the_app_and_not_each_of_its_watches(self, admin: Client) -> None:
        shown = page(admin, "index")
        assert "Disabled endpoints" in shown
        assert "Failed watches" not in shown

    def test_redelivering_fails_and_says_why(self, admin: Client, watch: Watch, alice: Receiver, work: Work) -> None:
        delivery = Delivery.objects.filter(path="README.md").get()
        before = len(alice.requests)
        answer = admin.post(reverse("admin:snapshots_delivery_redeliver", args=[delivery.pk]), follow=True)
        enable = reverse("admin:repositories_app_enable", args=[watch.app.pk])
        words = f'is disabled: nothing is sent until it is <a class="dc-link" href="{enable}">enabled</a>.'
        assert words in answer.content.decode()
        work()
        assert len(alice.requests) == before
        assert admin.get(enable).status_code == 200
        admin.post(enable)
        admin.post(reverse("admin:snapshots_delivery_redeliver", args=[delivery.pk]))
        work()
        assert len(alice.requests) == before + 1

    def test_the_api_says_so_also_of_a_new_watch(self, watch: Watch, git_host: GitHost) -> None:
        api = Api(accounts.rotate_bearer_token(watch.app))
        listed = api.get("/api/repositories").json()["repositories"]
        assert [(each["app_state"], each["status"]) for each in listed] == [("disabled", "failed")]
        other = git_host.create("acme/other")
        other.commit({"a.md": "a"})
        made = api.watch(other.url)
        assert (made.status_code, made.json()["app_state"]) == (201, "disabled")
        assert api.get(made["Location"]).json()["repository_id"] == made.json()["repository_id"]

    def test_no_attempt_is_announced(self, admin: Client, watch: Watch) -> None:
        api = Api(accounts.rotate_bearer_token(watch.app))
        accounts.enable_app(watch.app)
        Watch.objects.update(retry_at=timezone.now() - timedelta(minutes=5), retry_count=1)
        accounts.disable_app(watch.app, "The endpoint answered 410 Gone.")
        assert api.get(f"/api/repositories/{watch.repository.public_id}").json()["retry_at"] is None
        assert "Next attempt" not in page(admin, "repositories_watch_change", watch.pk)

    def test_a_refused_token_is_the_reason_again_once_the_app_is_enabled(self, admin: Client, watch: Watch) -> None:
        accounts.enable_app(watch.app)
        watch.refresh_from_db()
        watch_state.refuse(watch, AccessDenied("The token was refused."))
        accounts.disable_app(watch.app, "They moved")
        shown = page(admin, "repositories_watch_change", watch.pk)
        assert "They moved" in shown
        assert "The token was refused." not in shown
        accounts.enable_app(watch.app)
        shown = page(admin, "repositories_watch_change", watch.pk)
        assert 'dc-bad">token refused' in shown
        assert "The token was refused." in shown
        assert "They moved" not in shown

    def test_the_api_refuses_too(self, watch: Watch) -> None:
        api = Api(accounts.rotate_bearer_token(watch.app))
        answer = api.call("POST", f"/api/repositories/{watch.repository.public_id}/resync")
        assert (answer.status_code, answer.json()["code"]) == (409, "endpoint-disabled")


def test_jobs_that_wait_without_a_worker_need_attention(admin: Client) -> None:
    Queue(queue.SNAPSHOTS, connection=queue.connection(), serializer=JSONSerializer).enqueue("builtins.abs", 1)
    shown = page(admin, "index")
    assert "jobs wait in snapshots, and no worker takes that queue" in shown
    assert "Start a worker" in shown
    assert "Nothing needs attention" not in shown


def test_a_failing_watch_stays_on_the_list_while_it_is_tried_again(admin: Client, watch: Watch) -> None:
    Watch.objects.update(status=WatchStatus.FAILED, retry_count=5, last_error="503 Service Unavailable")
    watch_state.begin_delivery(watch, sequence=1)
    Watch.objects.update(status=WatchStatus.SCANNING)
    assert "503 Service Unavailable" in page(admin, "index")
    watch_state.complete(watch, sequence=1, commit_sha="1" * 40)
    assert "503 Service Unavailable" not in page(admin, "index")


def test_a_repository_that_no_token_can_read_is_not_healthy(
    admin: Client, alice_app: App, git_host: GitHost, work: Work
) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alice"})
    private.commit({"plan.md": "one"})
    watches.watch(alice_app, private.url, token="ghp_alice")
    work()
    assert "healthy" in page(admin, "repositories_repository_changelist")
    private.private_to = frozenset()
    watches.ask_for_snapshot(Repository.objects.get())
    work()
    shown = page(admin, "repositories_repository_changelist")
    assert "no token can read it" in shown
    assert 'dc-good">healthy' not in shown


def test_sending_everything_again_to_many_asks_first(admin: Client, watch: Watch, alice: Receiver, work: Work) -> None:
    alice.requests.clear()
    url, chosen = reverse("admin:repositories_watch_changelist"), {"_selected_action": [watch.pk]}
    asked = admin.post(url, {"action": "resync_selected", **chosen})
    assert "Every file is sent to the apps again" in asked.content.decode()
    work()
    assert alice.requests == []
    alice.mirror.forget(watch.repository.public_id)
    admin.post(url, {"action": "resync_selected", "confirmed": "yes", **chosen})
    work()
    assert len(alice.requests) == 3
