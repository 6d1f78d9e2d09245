"""Hooks in the admin: what has arrived, a hook for a whole host, its secret shown once."""

import html
import re

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from docora.console.roles import VIEWER
from repositories import hooks
from repositories.models import Hook, Watch
from tests.support.git_hooks import github

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("admin"))
    return client


def text_of(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200
    return answer.content.decode()


def ticket_in(page: str) -> str:
    [ticket] = re.findall(r'name="ticket" value="([^"]+)"', page)
    return str(ticket)


def test_what_has_arrived_is_shown_and_no_secret(admin: Client, watch: Watch) -> None:
    hook, secret = hooks.open_for(watch)
    github(secret, "acme/handbook").to(f"/hooks/{hook.public_id}")
    github("wrong", "acme/handbook").to(f"/hooks/{hook.public_id}")
    for url in (
        reverse("admin:repositories_hook_changelist"),
        reverse("admin:repositories_hook_change", args=[hook.pk]),
    ):
        page = text_of(admin, url)
        assert hook.public_id in page
        assert "The proof is missing or wrong." in page
        assert "1, 0, 1" in page
        assert secret not in html.unescape(page)


def test_a_hook_for_a_host_is_made_once_and_its_secret_shown_once(admin: Client, watch: Watch) -> None:
    url = reverse("admin:repositories_hook_add")
    ticket = ticket_in(text_of(admin, url))
    wrong = admin.post(url, {"host": "elsewhere.example.com", "ticket": ticket})
    assert "DOCORA_GIT_HOSTS does not allow" in wrong.content.decode()
    filled = {"host": watch.repository.remote.address, "ticket": ticket_in(wrong.content.decode())}
    shown = html.unescape(admin.post(url, filled).content.decode())
    [secret] = re.findall(r"whsec_[\w+/=]+", shown)
    hook = Hook.objects.get()
    assert github(secret, "acme/handbook").to(f"/hooks/{hook.public_id}").status_code == 202
    admin.post(url, filled)
    assert Hook.objects.count() == 1
    assert secret not in html.unescape(text_of(admin, reverse("admin:repositories_hook_change", args=[hook.pk])))


def test_the_secret_is_changed_and_the_hook_ended(admin: Client, watch: Watch) -> None:
    hook, old = hooks.open_for(watch)
    change = reverse("admin:repositories_hook_change_secret", args=[hook.pk])
    shown = html.unescape(admin.post(change, {"ticket": ticket_in(text_of(admin, change))}).content.decode())
    [new] = re.findall(r"whsec_[\w+/=]+", shown)
    for secret in (old, new):
        assert github(secret, "acme/handbook").to(f"/hooks/{hook.public_id}").status_code == 202
    admin.post(reverse("admin:repositories_hook_end", args=[hook.pk]))
    assert not Hook.objects.exists()


def test_a_viewer_sees_hooks_and_changes_none(client: Client, watch: Watch) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.groups.add(Group.objects.get(name=VIEWER))
    client.force_login(viewer)
    hook, _ = hooks.open_for(watch)
    assert hook.public_id in text_of(client, reverse("admin:repositories_hook_changelist"))
    assert client.get(reverse("admin:repositories_hook_add")).status_code == 403
    assert client.post(reverse("admin:repositories_hook_end", args=[hook.pk])).status_code == 403
    assert Hook.objects.exists()


def test_the_hook_of_the_github_app_is_shown_above_the_list(admin: Client, watch: Watch, settings: Settings) -> None:
    url = reverse("admin:repositories_hook_changelist")
    settings.GITHUB_APP_ID, settings.GITHUB_APP_API_URL = "1", "https://api.github.com"
    assert "/hooks/github-app" not in text_of(admin, url)
    settings.GITHUB_APP_WEBHOOK_SECRET = "the webhook secret of the app"
    github("wrong", "acme/handbook").to("/hooks/github-app")
    page = text_of(admin, url)
    assert "/hooks/github-app" in page
    assert "The proof is missing or wrong." in page
    assert settings.GITHUB_APP_WEBHOOK_SECRET not in page
