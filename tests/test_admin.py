"""The admin: every page opens, and no secret is on any of them."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from docora.demo.githost import GitHost
from repositories import services
from repositories.models import App

pytestmark = pytest.mark.django_db(transaction=True)

PAGES = [
    "repositories_app",
    "repositories_repository",
    "repositories_watch",
    "snapshots_snapshot",
    "snapshots_delivery",
    "snapshots_parked",
]


@pytest.fixture
def operator(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("admin"))
    return client


@pytest.mark.parametrize("page", PAGES)
def test_lists_and_details_show_no_secret(
    operator: Client, page: str, alice_app: App, git_host: GitHost, work: Callable[..., None]
) -> None:
    private = git_host.create("acme/secret", private_to={"ghp_alices_token"})
    private.commit({"plan.md": "one"})
    services.watch(alice_app, private.url, token="ghp_alices_token")
    work()
    listing = operator.get(reverse(f"admin:{page}_changelist"), {"q": "a"})
    assert listing.status_code == 200
    pages = [listing]
    for row in listing.context["cl"].queryset:
        pages.append(operator.get(reverse(f"admin:{page}_change", args=[row.pk])))
    for answer in pages:
        assert answer.status_code == 200
        text = answer.content.decode()
        assert "ghp_alices_token" not in text
        assert alice_app.webhook_key not in text
        assert alice_app.bearer_hash not in text
