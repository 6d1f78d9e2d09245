"""What each role may do in the admin: every page and every operation."""

import html
import re

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from docora.console.base import ConsoleAdmin
from docora.console.roles import OPERATOR, VIEWER, make_roles
from repositories import accounts, hooks
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import Delivery, File, Parked, Snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]

ROOMS = ["repositories_app", "repositories_repository", "repositories_watch"]
HISTORY = ["snapshots_snapshot", "snapshots_delivery", "snapshots_parked"]
USERS = ["auth_user", "auth_group"]
admin.autodiscover()
CONSOLE = [page for page in admin.site._registry.values() if isinstance(page, ConsoleAdmin)]
OPERATIONS = [(page.model, operation) for page in CONSOLE for operation in page.operations]


@pytest.fixture(autouse=True)
def rows() -> None:
    """One row of everything, to which every operation applies."""
    credentials = accounts.onboard("Alice's search", "http://127.0.0.1:9/hooks")
    app = App.objects.get(public_id=credentials.app_id)
    repository = Repository.objects.create(
        url="https://github.com/acme/handbook", owner="acme", name="handbook", clone_key="acme/handbook",
        consecutive_failures=1,
    )  # fmt: skip
    watch = Watch.objects.create(app=app, repository=repository, status=WatchStatus.FAILED)
    hooks.open_for(watch)
    Snapshot.objects.create(repository=repository, sequence=1, commit_sha="a" * 40, files=1, bytes=1)
    file = File.objects.create(repository=repository, path="README.md", path_digest=b"d" * 32)
    Parked.objects.create(watch=watch, file=file, sha256=b"s" * 32, reason="413")
    Delivery.objects.create(watch=watch, message_id="msg_1", event="create", path="README.md", milliseconds=5)


def login(client: Client, role: str) -> Client:
    user = User.objects.create_user(role, is_staff=True, is_superuser=role == "superuser")
    if role in (OPERATOR, VIEWER):
        user.groups.add(Group.objects.get(name=role))
    client.force_login(user)
    return client


def url_of(model: type, name: str) -> str:
    options = model._meta  # type: ignore[attr-defined]
    row = model.objects.get()  # type: ignore[attr-defined]
    return reverse(f"admin:{options.app_label}_{options.model_name}_{name}", args=[row.pk])


@pytest.mark.parametrize("page", [*ROOMS, *HISTORY])
@pytest.mark.parametrize(("role", "status"), [("superuser", 200), (OPERATOR, 200), (VIEWER, 200), ("nobody", 403)])
def test_lists_and_pages_are_for_those_with_a_role(client: Client, role: str, status: int, page: str) -> None:
    login(client, role)
    assert client.get(reverse(f"admin:{page}_changelist")).status_code == status
    model = next(model for model in admin.site._registry if model._meta.label_lower == page.replace("_", "."))
    assert client.get(url_of(model, "change")).status_code == status


@pytest.mark.parametrize("page", USERS)
@pytest.mark.parametrize(("role", "status"), [("superuser", 200), (OPERATOR, 403), (VIEWER, 403)])
def test_users_are_the_superusers(client: Client, role: str, status: int, page: str) -> None:
    assert login(client, role).get(reverse(f"admin:{page}_changelist")).status_code == status


@pytest.mark.parametrize("role", [VIEWER, "nobody"])
@pytest.mark.parametrize(("model", "operation"), OPERATIONS, ids=lambda value: getattr(value, "name", None))
def test_operations_are_refused_without_the_role(client: Client, role: str, model: type, operation: object) -> None:
    url = url_of(model, operation.name)  # type: ignore[attr-defined]
    login(client, role)
    assert client.get(url).status_code == 403
    assert client.post(url).status_code == 403


@pytest.mark.parametrize("role", ["superuser", OPERATOR])
@pytest.mark.parametrize(("model", "operation"), OPERATIONS, ids=lambda value: getattr(value, "name", None))
def test_operations_are_offered_with_the_role(client: Client, role: str, model: type, operation: object) -> None:
    if operation.name == "enable":  # type: ignore[attr-defined]
        accounts.disable_app(App.objects.get(), "for the test")
    login(client, role)
    url = url_of(model, operation.name)  # type: ignore[attr-defined]
    assert url in client.get(url_of(model, "change")).content.decode()
    assert client.get(url).status_code == 200


@pytest.mark.parametrize(("role", "status"), [("superuser", 200), (OPERATOR, 200), (VIEWER, 403), ("nobody", 403)])
def test_onboarding_is_the_operators(client: Client, role: str, status: int) -> None:
    login(client, role)
    assert client.get(reverse("admin:repositories_app_add")).status_code == status
    assert client.post(reverse("admin:repositories_app_add"), {"name": "x"}).status_code == status


def test_a_viewer_sees_an_app_but_cannot_edit_it(client: Client) -> None:
    login(client, VIEWER)
    url = url_of(App, "change")
    assert 'name="base_url"' not in client.get(url).content.decode()
    assert client.post(url, {"name": "Mine now"}).status_code == 403


@pytest.mark.parametrize("role", [VIEWER, OPERATOR])
def test_bulk_actions_follow_the_role(client: Client, role: str) -> None:
    login(client, role)
    url = reverse("admin:repositories_watch_changelist")
    answer = client.post(url, {"action": "retry_selected", "_selected_action": [Watch.objects.get().pk]})
    started = answer.status_code == 302 and "/bulk/" in answer["Location"]
    assert started == (role == OPERATOR)


def queue_operations() -> list[str]:
    verbs = ["requeue", "run", "delete"]
    lines = ["failed", "later", "waiting"]
    return [
        *(reverse("admin:queue_act", args=["snapshot-1", verb]) for verb in verbs),
        *(reverse("admin:queue_act_on_all", args=["snapshots", *pair]) for pair in zip(lines, verbs, strict=True)),
    ]


@pytest.mark.parametrize("role", ["superuser", OPERATOR, VIEWER])
def test_everybody_with_a_role_sees_the_queue_but_viewers_cannot_touch_it(client: Client, role: str) -> None:
    login(client, role)
    assert client.get(reverse("admin:django_rq_dashboard_changelist")).status_code == 200
    for url in queue_operations():
        assert client.post(url).status_code == (403 if role == VIEWER else 302)


def test_who_has_no_role_does_not_see_the_queue(client: Client) -> None:
    login(client, "nobody")
    assert client.get(reverse("admin:django_rq_dashboard_changelist")).status_code == 403
    assert client.get(reverse("admin:queue_job", args=["snapshot-1"])).status_code == 403
    assert client.get(reverse("admin:django_rq_home_json")).status_code == 403
    for url in queue_operations():
        assert client.post(url).status_code == 403


def test_nothing_is_shown_without_a_login(client: Client) -> None:
    for url in (reverse("admin:index"), url_of(App, "change"), url_of(Watch, "retry")):
        answer = client.get(url)
        assert answer.status_code == 302
        assert "/login/" in answer["Location"]


def test_the_overview_has_buttons_for_operators_only(client: Client) -> None:
    retry = url_of(Watch, "retry")
    assert retry in login(client, OPERATOR).get(reverse("admin:index")).content.decode()
    assert retry not in login(client, VIEWER).get(reverse("admin:index")).content.decode()
    assert "Alice" not in login(client, "nobody").get(reverse("admin:index")).content.decode()


@pytest.mark.parametrize(("role", "status"), [("superuser", 200), (OPERATOR, 200), (VIEWER, 200), ("nobody", 403)])
def test_the_log_of_actions_is_for_those_with_a_role(client: Client, role: str, status: int) -> None:
    assert login(client, role).get(reverse("admin:admin_logentry_changelist")).status_code == status


def visible(page: str) -> str:
    """What a person reads: without tags, and without the names of icons."""
    shown = re.sub(r"<(script|style)\b.*?</\1>|<span[^>]*material-symbols[^>]*>[^<]*</span>", " ", page, flags=re.S)
    titles = " ".join(re.findall(r'(?:title|aria-label|placeholder|alt)="([^"]*)"', shown))
    return html.unescape(f"{re.sub('<[^>]*>', ' ', shown)} {titles}")


def test_a_role_is_called_a_role_wherever_it_is_shown(client: Client) -> None:
    login(client, "superuser")
    viewer, user = Group.objects.get(name=VIEWER), User.objects.create_user("vera", is_staff=True)
    user.groups.add(viewer)
    pages = [
        *(f"/admin/auth/group/{path}" for path in ("", "add/", f"{viewer.pk}/change/", f"{viewer.pk}/delete/")),
        *(f"/admin/auth/user/{path}" for path in ("", "add/", f"{user.pk}/change/", f"{user.pk}/delete/")),
    ]
    answers = [client.get(path) for path in pages]
    answers.append(
        client.post(f"/admin/auth/group/{viewer.pk}/change/", {"name": "viewer", "permissions": []}, follow=True)
    )
    answers.append(client.post("/admin/auth/group/", {"action": "delete_selected", "_selected_action": viewer.pk}))
    answers.append(client.post(f"/admin/auth/group/{viewer.pk}/delete/", {"post": "yes"}, follow=True))
    answers.append(client.get("/admin/admin/logentry/"))
    for answer in answers:
        shown = visible(answer.content.decode())
        assert answer.status_code == 200
        assert not re.search(r".{0,40}group.{0,40}", shown, re.IGNORECASE), answer.request["PATH_INFO"]
    assert "Roles" in visible(answers[0].content.decode())
    assert "Can add role" in visible(answers[2].content.decode())
    assert "viewer of vera" in visible(answers[3].content.decode())


def test_permissions_that_were_named_by_an_earlier_release_are_renamed() -> None:
    of_roles = Permission.objects.filter(content_type__app_label="auth", content_type__model="group")
    of_roles.filter(codename="add_group").update(name="Can add group")
    make_roles(apps.get_app_config("django_rq"), using="default")
    assert of_roles.get(codename="add_group").name == "Can add role"


def columns(model: type[Model]) -> list[str]:
    """Every column of the model, and of the models that it points to."""
    own = [field for field in model._meta.get_fields() if not field.auto_created or field.concrete]
    there = [(field.name, field.related_model) for field in own if field.is_relation and field.concrete]
    return [field.name for field in own] + [
        f"{name}__{field.name}" for name, other in there if isinstance(other, type) for field in other._meta.fields
    ]


@pytest.mark.parametrize("page", CONSOLE, ids=lambda page: page.opts.model_name)
def test_a_list_cannot_be_asked_for_what_it_does_not_show(client: Client, page: ConsoleAdmin) -> None:
    """`?bearer_hash__startswith=a` and its like would tell a secret letter by letter."""
    login(client, VIEWER)
    url = reverse(f"admin:{page.opts.app_label}_{page.opts.model_name}_changelist")
    questions = [f"{column}__{lookup}" for column in columns(page.model) for lookup in ("startswith", "gt", "regex")]
    answered = [question for question in questions if client.get(url, {question: "1"}).status_code != 400]
    assert answered == []


def test_lists_are_filtered_by_what_their_pages_offer(client: Client) -> None:
    login(client, VIEWER)
    for page in CONSOLE:
        url = reverse(f"admin:{page.opts.app_label}_{page.opts.model_name}_changelist")
        links = re.findall(r'href="(\?[^"]+)"', client.get(url).content.decode())
        asked = [link for link in map(html.unescape, links) if client.get(f"{url}{link}").status_code != 200]
        assert asked == []
    app, watch = App.objects.get(), Watch.objects.get()
    for name, lookup, row in (
        ("repositories_watch", "app__id__exact", app.pk),
        ("repositories_watch", "repository__id__exact", watch.repository_id),
        ("snapshots_delivery", "watch__app__id__exact", app.pk),
        ("snapshots_delivery", "watch__id__exact", watch.pk),
    ):
        answer = client.get(reverse(f"admin:{name}_changelist"), {lookup: row})
        assert len(answer.context["cl"].result_list) == 1


def test_no_column_of_a_list_has_the_name_of_a_column_of_the_table() -> None:
    """Django would show the table's column instead of ours."""
    for page in CONSOLE:
        fields = {field.name for field in page.opts.get_fields()}
        ours = {name for name in page.list_display if isinstance(name, str) and hasattr(type(page), name)}
        assert not ours & fields, type(page).__name__
