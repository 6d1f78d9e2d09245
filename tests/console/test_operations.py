"""What an operator does in the admin: each operation does what it says and is in the log of actions."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from docora.console import bulk
from docora.console.roles import OPERATOR
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts, watches
from repositories.errors import AccessDenied, NotWatched
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.selection import Selection
from snapshots.models import Delivery, Parked
from tests.conftest import ALICE_KEY
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def operator(client: Client) -> Client:
    user = User.objects.create_user("olga", is_staff=True)
    user.groups.add(Group.objects.get(name=OPERATOR))
    client.force_login(user)
    return client


def operate(
    client: Client, row: App | Repository | Watch | Delivery | Parked, operation: str, /, **data: object
) -> str:
    """Fill in the operation's page as a person would; returns the text of the page that follows."""
    url = reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_{operation}", args=[row.pk])
    ticket = re.search(r'name="ticket" value="([^"]*)"', client.get(url).content.decode())
    answer = client.post(url, {**data, "ticket": ticket[1] if ticket else ""}, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def logged() -> list[str]:
    return [f"{entry.user}: {entry.get_change_message()}" for entry in LogEntry.objects.order_by("pk")]


def secret(page: str, name: str) -> str:
    found = re.search(rf"{name}</label>.*?<textarea[^>]*>([^<]*)</textarea>", page, re.S)
    assert found
    return found[1]


def api_status(client: Client, token: str) -> int:
    return client.get("/api/repositories", headers={"Authorization": f"Bearer {token}"}).status_code


def onboard(client: Client, **data: str) -> tuple[dict[str, str], str]:
    """The form that was sent, and the page that followed."""
    page = client.get(reverse("admin:repositories_app_add")).content.decode()
    ticket = re.search(r'name="ticket" value="([^"]*)"', page)
    assert ticket
    form = {"name": "Bob's wiki", "base_url": "https://wiki.example.com/hooks", "ticket": ticket[1], **data}
    answer = client.post(reverse("admin:repositories_app_add"), form)
    assert answer.status_code == 200
    return form, answer.content.decode()


def test_onboarding_shows_working_credentials_exactly_once(operator: Client) -> None:
    form, page = onboard(operator)
    app = App.objects.get()
    assert secret(page, "App id") == app.public_id
    assert secret(page, "Webhook key") == app.webhook_key
    token = secret(page, "Bearer token")
    assert api_status(operator, token) == 200
    again = operator.post(reverse("admin:repositories_app_add"), form, follow=True).content.decode()
    assert "sent already" in again
    assert App.objects.count() == 1
    for shown in (again, operator.get(reverse("admin:repositories_app_change", args=[app.pk])).content.decode()):
        assert token not in shown
        assert app.webhook_key not in shown
    assert logged() == ["olga: Onboarded"]


def test_the_page_with_credentials_is_not_cached(operator: Client) -> None:
    page = operator.get(reverse("admin:repositories_app_add")).content.decode()
    ticket = re.search(r'name="ticket" value="([^"]*)"', page)
    form = {"name": "x", "base_url": "https://x.example.com", "ticket": ticket[1] if ticket else ""}
    answer = operator.post(reverse("admin:repositories_app_add"), form)
    assert "no-store" in answer["Cache-Control"]


def test_an_app_may_bring_its_own_webhook_key(operator: Client) -> None:
    onboard(operator, webhook_key="a-key-of-sixteen-or-more")
    assert App.objects.get().webhook_key == "a-key-of-sixteen-or-more"


def test_onboarding_says_what_is_wrong(operator: Client) -> None:
    _, page = onboard(operator, base_url="not a url", webhook_key="short")
    assert "Enter a URL such as" in page
    assert "at least 16 characters" in page
    assert "short" not in re.findall(r'value="([^"]*)"', page)
    assert not App.objects.exists()


def test_rotating_the_bearer_token_keeps_the_old_one_for_the_overlap(operator: Client) -> None:
    old = accounts.onboard("Bob's wiki", "https://wiki.example.com")
    new = secret(operate(operator, App.objects.get(), "rotate_bearer", hours=2), "Bearer token")
    assert (api_status(operator, old.bearer_token), api_status(operator, new)) == (200, 200)
    newest = secret(operate(operator, App.objects.get(), "rotate_bearer", hours=0), "Bearer token")
    assert [api_status(operator, token) for token in (old.bearer_token, new, newest)] == [401, 401, 200]
    assert logged() == ["olga: Rotate bearer token"] * 2


def test_a_base_url_that_is_edited_is_where_a_delivery_under_way_goes_on(operator: Client, watch: Watch) -> None:
    path = reverse("admin:repositories_app_change", args=[watch.app_id])
    fields = {"name": "Alice", "base_url": "https://new.example.com/", "max_in_flight": 3, "may_change_base_url": "on"}
    assert operator.post(path, fields).status_code == 302
    app = App.objects.get()
    assert (app.base_url, app.max_in_flight, app.may_change_base_url) == ("https://new.example.com", 3, True)
    assert Watch.objects.get().restarts == 1


def test_rotating_the_webhook_key_signs_with_both_for_a_while(operator: Client, alice_app: App) -> None:
    new = secret(operate(operator, alice_app, "rotate_key", hours=2), "Webhook key")
    alice_app.refresh_from_db()
    assert alice_app.signing_keys == [new, ALICE_KEY]
    assert alice_app.previous_key_until
    assert timedelta(hours=1) < alice_app.previous_key_until - timezone.now() <= timedelta(hours=2)


def test_ping_tells_what_the_endpoint_answered(
    operator: Client, alice_app: App, alice: Receiver, git_host: GitHost
) -> None:
    assert "The endpoint answered 200" in operate(operator, alice_app, "ping")
    with alice.faults.put(ReceiverFault(events=("ping",), status=503)):
        assert "did not accept it: 503" in operate(operator, alice_app, "ping")
    assert logged()[0] == "olga: Ping"
    assert logged()[1].startswith("olga: Ping failed: ")


def test_an_app_is_disabled_with_a_reason_and_enabled_again(
    operator: Client, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    page = operate(operator, watch.app, "disable", reason="They moved")
    assert "They moved" in page
    assert f'href="{reverse("admin:repositories_app_enable", args=[watch.app.pk])}">enabled</a> again' in page
    remote.commit({"new.md": "new"})
    watches.request_snapshot(watch.repository)
    work()
    assert "new.md" not in alice.files[watch.repository.public_id]
    operate(operator, watch.app, "enable")
    work()
    assert alice.files[watch.repository.public_id]["new.md"] == b"new"


def test_deleting_an_app_tells_the_impact_and_wants_its_name(operator: Client, watch: Watch, work: Work) -> None:
    url = reverse("admin:repositories_app_remove", args=[watch.app.pk])
    page = operator.get(url).content.decode()
    assert "1 watch, with the log of deliveries" in page
    assert "acme/handbook" in page
    assert "3 delivered files" in page
    assert "This is not the name" in operate(operator, watch.app, "remove", name="alice")
    assert App.objects.exists()
    assert "is deleted" in operate(operator, watch.app, "remove", name="Alice's search")
    work()
    assert not App.objects.exists()
    assert not clones.path_of(watch.repository.clone_key).exists()
    entry = LogEntry.objects.get()
    assert entry.is_deletion()
    assert "Alice" in entry.object_repr


def test_a_failed_watch_is_retried_with_one_click(
    operator: Client, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(status=500)):
        watch = watches.watch(alice_app, remote.url)
        work()
    Watch.objects.update(status=WatchStatus.FAILED, retry_at=timezone.now() + timedelta(hours=1))
    operate(operator, watch, "retry")
    work()
    watch.refresh_from_db()
    assert watch.status == WatchStatus.SYNCED
    assert logged() == ["olga: Retry"]


def test_a_resync_sends_every_file_again(operator: Client, watch: Watch, alice: Receiver, work: Work) -> None:
    alice.requests.clear()
    operate(operator, watch, "resync")
    work()
    assert sorted(request.path for request in alice.requests) == ["README.md", "docs/start.md", "logo.png"]


def test_parked_files_are_sent_again(
    operator: Client, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(path="logo.png", status=413)):
        watch = watches.watch(alice_app, remote.url)
        work()
    assert watch.parked.exists()
    operate(operator, watch, "retry_parked")
    work()
    assert not watch.parked.exists()
    assert "logo.png" in alice.files[watch.repository.public_id]


def test_a_watch_of_some_files_counts_those(
    operator: Client, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    watch = watches.watch(alice_app, remote.url, selection=Selection(include=("*.md",)))
    row = reverse("admin:repositories_watch_change", args=[watch.pk])
    with alice.faults.put(ReceiverFault(path="docs/start.md", status=500)):
        work()
    assert "1 so far" in operator.get(row).content.decode()
    work(also_later_ones=True)
    facts = re.search(r"Files delivered</dt>\s*<dd[^>]*>\s*([^<]*?)\s*</dd>", operator.get(row).content.decode())
    assert facts
    assert facts[1] == "2"


def test_one_parked_file_is_sent_again_alone(
    operator: Client, alice_app: App, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(status=422)):
        watch = watches.watch(alice_app, remote.url)
        work()
    parked = Parked.objects.get(watch=watch, file__path="logo.png")
    page = operator.get(reverse("admin:snapshots_parked_change", args=[parked.pk])).content.decode()
    assert f'href="{reverse("admin:snapshots_parked_retry", args=[parked.pk])}">retry</a>' in page
    assert "logo.png is being sent" in operate(operator, parked, "retry")
    work()
    assert set(alice.files[watch.repository.public_id]) == {"logo.png"}


def test_a_time_to_come_is_no_time_to_redeliver_from(operator: Client, watch: Watch) -> None:
    page = operate(operator, watch, "redeliver_since", moment="2999-01-01T00:00")
    assert "has yet to come" in page


def test_a_token_is_changed_when_it_can_read(operator: Client, alice_app: App, git_host: GitHost, work: Work) -> None:
    private = git_host.create("acme/secret", private_to={"old-token", "new-token"})
    private.commit({"plan.md": "one"})
    watch = watches.watch(alice_app, private.url, token="old-token")
    page = operate(operator, watch, "change_token", token="wrong-token")
    assert "cannot read the repository" in page
    assert "wrong-token" not in page
    operate(operator, watch, "change_token", token="new-token")
    watch.refresh_from_db()
    assert watch.token == "new-token"
    assert not any(token in "".join(logged()) for token in ("old-token", "new-token", "wrong-token"))


def test_one_delivery_and_all_since_a_time_are_sent_again(
    operator: Client, watch: Watch, alice: Receiver, work: Work
) -> None:
    alice.requests.clear()
    operate(operator, Delivery.objects.get(path="README.md"), "redeliver")
    work()
    assert [request.path for request in alice.requests] == ["README.md"]
    operate(operator, watch, "redeliver_since", moment=(timezone.now() - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M"))
    work()
    assert len(alice.requests) == 4


def test_a_repository_is_looked_at_reset_and_cloned_anew(
    operator: Client, watch: Watch, git_host: GitHost, remote: HostedRepository, work: Work
) -> None:
    Repository.objects.update(consecutive_failures=5, circuit_open_until=timezone.now() + timedelta(minutes=20))
    assert (
        "circuit open, probe in 19 min"
        in operator.get(reverse("admin:repositories_repository_change", args=[watch.repository.pk])).content.decode()
    )
    operate(operator, watch.repository, "reset_circuit")
    work()
    repository = Repository.objects.get()
    assert (repository.consecutive_failures, repository.circuit_open_until) == (0, None)
    fetches = git_host.count(remote, "fetch")
    operate(operator, repository, "reclone")
    work()
    assert git_host.count(remote, "fetch") == fetches + 1
    operate(operator, repository, "snapshot")
    assert logged() == ["olga: Reset circuit", "olga: Re-clone", "olga: Snapshot now"]


def test_purging_a_repository_takes_its_watches_and_its_clone(operator: Client, watch: Watch, work: Work) -> None:
    assert "This is not the name" in operate(operator, watch.repository, "purge", name="handbook")
    operate(operator, watch.repository, "purge", name="acme/handbook")
    work()
    assert not Repository.objects.exists()
    assert not clones.path_of(watch.repository.clone_key).exists()
    assert App.objects.exists()


def test_many_watches_are_retried_with_progress(
    operator: Client, alice_app: App, bob_app: App, remote: HostedRepository, work: Work
) -> None:
    made = [watches.watch(app, remote.url) for app in (alice_app, bob_app)]
    Watch.objects.update(status=WatchStatus.FAILED)
    answer = operator.post(
        reverse("admin:repositories_watch_changelist"),
        {"action": "retry_selected", "_selected_action": [watch.pk for watch in made]},
        follow=True,
    )
    assert "Under way: 0 of 2" in answer.content.decode()
    work()
    assert "Done: 2 of 2" in operator.get(answer.redirect_chain[-1][0]).content.decode()
    assert not Watch.objects.exclude(status=WatchStatus.SYNCED).exists()
    assert logged() == ["olga: Retry, with 1 other"] * 2


@pytest.mark.parametrize("action", ["retry_selected", "resync_selected"])
def test_what_is_gone_when_it_is_chosen_is_told(operator: Client, watch: Watch, action: str) -> None:
    url, chosen = reverse("admin:repositories_watch_changelist"), {"_selected_action": [watch.pk]}
    watches.unwatch(watch.app, watch.repository.public_id)
    page = operator.post(url, {"action": action, **chosen}, follow=True).content.decode()
    assert "What was chosen is not there any more." in page
    assert not LogEntry.objects.exists()


def test_a_cancelled_run_leaves_the_rest_alone(operator: Client, watch: Watch, alice: Receiver, work: Work) -> None:
    alice.requests.clear()
    answer = operator.post(
        reverse("admin:repositories_watch_changelist"),
        {"action": "resync_selected", "_selected_action": [watch.pk], "confirmed": "yes"},
    )
    page = operator.post(answer["Location"], follow=True).content.decode()
    assert "Cancelled: 0 of 1" in page
    work()
    assert alice.requests == []


def test_a_run_goes_on_after_a_row_that_fails(operator: Client, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: list[Watch]) -> None:
        raise NotWatched

    monkeypatch.setitem(bulk.VERBS, "retry", bulk.Verb("Retry", Watch, refuse))
    answer = operator.post(
        reverse("admin:repositories_watch_changelist"), {"action": "retry_selected", "_selected_action": [watch.pk]}
    )
    run_id = answer["Location"].rstrip("/").rpartition("/")[2]
    bulk.run(run_id)
    progress = bulk.progress_of(run_id)
    assert progress
    assert (progress.done, progress.failed, progress.is_over) == (1, 1, True)
    assert "does not watch" in progress.last_error
    page = operator.get(answer["Location"]).content.decode()
    assert f'href="{reverse("admin:repositories_watch_change", args=[watch.pk])}"' in page


def test_the_deliveries_of_a_disabled_app_do_not_keep_others_from_being_sent_again(
    operator: Client, alice_app: App, bob_app: App, bob: Receiver, remote: HostedRepository, work: Work
) -> None:
    for app in (alice_app, bob_app):
        watches.watch(app, remote.url)
    work()
    accounts.disable_app(alice_app, "gone")
    bob.requests.clear()
    answer = operator.post(
        reverse("admin:snapshots_delivery_changelist"),
        {"action": "redeliver_selected", "_selected_action": [row.pk for row in Delivery.objects.all()]},
    )
    work()
    assert {request.path for request in bob.requests} == set(remote.files())
    progress = bulk.progress_of(answer["Location"].rstrip("/").rpartition("/")[2])
    assert progress
    assert (progress.done, progress.failed) == (6, 3)


@pytest.mark.parametrize("action", ["retry_selected", "resync_selected"])
def test_more_rows_than_a_list_counts_are_not_chosen_at_once(
    operator: Client,
    alice_app: App,
    bob_app: App,
    remote: HostedRepository,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
) -> None:
    monkeypatch.setattr(bulk, "_MOST", 1)
    made = [watches.watch(app, remote.url) for app in (alice_app, bob_app)]
    answer = operator.post(
        reverse("admin:repositories_watch_changelist"),
        {"action": action, "_selected_action": [made[0].pk], "select_across": "1"},
        follow=True,
    )
    assert "more than 1. Narrow the list first" in answer.content.decode()
    assert not LogEntry.objects.exists()


def test_a_selection_of_deliveries_is_one_request_for_each_watch(
    operator: Client, watch: Watch, alice: Receiver, work: Work
) -> None:
    before = watch.generation
    rows = Delivery.objects.filter(watch=watch)
    assert rows.count() > 1
    operator.post(
        reverse("admin:snapshots_delivery_changelist"),
        {"action": "redeliver_selected", "_selected_action": list(rows.values_list("pk", flat=True))},
    )
    alice.mirror.repeats_are_allowed = True
    alice.requests.clear()
    work()
    watch.refresh_from_db()
    assert watch.generation == before + 1
    assert len(alice.requests) == rows.values("path").distinct().count()


def test_the_slash_at_the_end_of_an_edited_url_is_left_out(operator: Client, watch: Watch) -> None:
    url = reverse("admin:repositories_app_change", args=[watch.app_id])
    data = {"name": "Alice", "base_url": "https://alice.example.com/hooks/", "max_in_flight": 8}
    assert operator.post(url, data).status_code == 302
    assert App.objects.get(pk=watch.app_id).base_url == "https://alice.example.com/hooks"


def test_an_operation_returns_only_to_pages_of_this_server(operator: Client, watch: Watch) -> None:
    Watch.objects.update(status=WatchStatus.FAILED)
    url = reverse("admin:repositories_watch_retry", args=[watch.pk])
    assert operator.post(url, {"next": "/admin/"})["Location"] == "/admin/"
    assert operator.post(url, {"next": "https://evil.example"})["Location"].startswith("/admin/repositories/watch/")


def test_unwatching_tells_the_impact_and_takes_the_clone_with_the_last_watch(
    operator: Client, watch: Watch, work: Work
) -> None:
    asked = operator.get(reverse("admin:repositories_watch_unwatch", args=[watch.pk])).content.decode()
    assert "what Docora knows of 3 delivered files" in asked
    assert "the repository and its clone, because nobody else watches it" in asked
    clone = clones.path_of(watch.repository.clone_key)
    assert "does not watch acme/handbook any more" in operate(operator, watch, "unwatch")
    work()
    assert not Watch.objects.exists()
    assert not clone.exists()
    assert logged() == ["olga: Unwatch"]


def test_a_clone_that_another_ref_needs_is_not_said_to_go(
    operator: Client, watch: Watch, bob_app: App, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"dev.md": "dev"}, branch="dev")
    other = watches.watch(bob_app, remote.url, ref="dev")
    clone = clones.path_of(watch.repository.clone_key)
    asked = operator.get(reverse("admin:repositories_watch_unwatch", args=[watch.pk])).content.decode()
    assert "the repository, because nobody else watches it" in asked
    assert (
        "the clone on disk"
        not in operator.get(reverse("admin:repositories_repository_purge", args=[watch.repository_id])).content.decode()
    )
    page = operate(operator, watch.repository, "purge", name=str(watch.repository))
    assert "its clone stays, because another ref is watched" in page
    work()
    assert clone.exists()
    assert "its clone is being deleted" in operate(operator, other.repository, "purge", name=str(other.repository))
    work()
    assert not clone.exists()


def test_a_watch_without_a_token_is_not_said_to_read_a_public_repository(operator: Client, watch: Watch) -> None:
    url = reverse("admin:repositories_watch_change", args=[watch.pk])
    assert "none: a public repository" in operator.get(url).content.decode()
    Repository.objects.update(is_private=True)
    Watch.objects.update(status=WatchStatus.FAILED, last_error_code=AccessDenied.code, access_denied_at=timezone.now())
    page = operator.get(url).content.decode()
    assert "a public repository" not in page
    assert "The watch has no token." in page
    assert "Ask for a new token" not in page


def test_filters_are_edited_and_the_app_is_told_the_difference(
    operator: Client, watch: Watch, alice: Receiver, work: Work
) -> None:
    assert "docs/start.md" in alice.files[watch.repository.public_id]
    page = operate(operator, watch, "edit_filters", include="*.md\n", exclude="docs/**", max_file_size="")
    assert "is being told the difference" in page
    work()
    assert list(alice.files[watch.repository.public_id]) == ["README.md"]
    watch.refresh_from_db()
    assert watch.selection == Selection(include=("*.md",), exclude=("docs/**",))
    form = operator.get(reverse("admin:repositories_watch_edit_filters", args=[watch.pk])).content.decode()
    assert re.search(r"<textarea[^>]*>\s*docs/\*\*</textarea>", form)
    assert logged() == ["olga: Edit filters"]


def test_a_filter_that_can_match_nothing_is_refused(operator: Client, watch: Watch) -> None:
    page = operate(operator, watch, "edit_filters", include="/etc/passwd", exclude="", max_file_size="")
    assert "a glob is a path below the repository" in page
    watch.refresh_from_db()
    assert watch.selection == Selection()
