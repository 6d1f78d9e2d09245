"""Events that an app is told only if it wants them: chosen by the operator or by the app itself."""

import importlib
import json
import re
from io import StringIO

import pytest
from django.apps import apps
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from repositories import accounts
from repositories.models import App
from tests.support.api import Api


def onboard(*options: str) -> App:
    output = StringIO()
    call_command("onboard", "Search", "https://search.example.com", "--json", *options, stdout=output)
    return App.objects.get(public_id=json.loads(output.getvalue())["app_id"])


@pytest.mark.django_db
class TestTheOperator:
    def test_chooses_them_when_an_app_is_onboarded(self) -> None:
        assert onboard().events == []
        assert onboard("--events", "sync_recovered, sync_complete").events == ["sync_complete", "sync_recovered"]

    def test_is_told_which_there_are(self) -> None:
        with pytest.raises(CommandError, match="sync_recovered and sync_complete"):
            onboard("--events", "sync_complet")
        assert not App.objects.exists()

    def test_chooses_them_in_the_admin(self, admin_client: Client) -> None:
        facts = {"name": "Search", "base_url": "https://search.example.com", "max_in_flight": 8}
        page = admin_client.get(reverse("admin:repositories_app_add"))
        ticket = page.context["ticket"]
        admin_client.post(
            reverse("admin:repositories_app_add"), facts | {"events": ["sync_complete"], "ticket": ticket}
        )
        app = App.objects.get()
        assert app.events == ["sync_complete"]
        url = reverse("admin:repositories_app_change", args=[app.pk])
        assert re.search(r'value="sync_complete"[^>]* checked', admin_client.get(url).content.decode())
        admin_client.post(url, facts | {"events": ["sync_recovered"]})
        app.refresh_from_db()
        assert (app.events, app.wants_recovery) == (["sync_recovered"], True)
        admin_client.post(url, facts)
        app.refresh_from_db()
        assert (app.events, app.wants_recovery) == ([], False)


@pytest.mark.django_db
class TestTheApp:
    @pytest.mark.parametrize("base", ["/api", "/api/v1"])
    def test_chooses_them_itself(self, alice_app: App, base: str) -> None:
        api = Api(accounts.rotate_bearer_token(alice_app))
        assert api.get(f"{base}/app").json()["events"] == []
        answer = api.call("PATCH", f"{base}/app", {"events": ["sync_recovered", "sync_complete", "sync_complete"]})
        assert (answer.status_code, answer.json()["events"]) == (200, ["sync_complete", "sync_recovered"])
        assert api.get(f"{base}/app").json()["events"] == ["sync_complete", "sync_recovered"]
        assert api.call("PATCH", f"{base}/app", {"events": []}).json()["events"] == []

    def test_is_told_that_an_event_does_not_exist(self, alice_app: App) -> None:
        api = Api(accounts.rotate_bearer_token(alice_app))
        assert api.call("PATCH", "/api/app", {"events": ["sync_failed"]}).status_code == 422
        with pytest.raises(ValidationError):
            accounts.choose_events(alice_app, ["sync_failed"])
        alice_app.refresh_from_db()
        assert alice_app.events == []


@pytest.mark.django_db
def test_apps_that_wanted_to_know_of_recoveries_still_do(alice_app: App, bob_app: App) -> None:
    App.objects.filter(pk=alice_app.pk).update(wants_recovery=True)
    importlib.import_module("repositories.migrations.0009_optional_events").take_over(apps, None)
    assert dict(App.objects.values_list("pk", "events")) == {alice_app.pk: ["sync_recovered"], bob_app.pk: []}
