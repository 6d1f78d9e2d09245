"""Pages for everybody: landmarks, icons, errors with a way back, the documentation of the API."""

import re

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.test import Client
from django.urls import reverse

from docora.console.charts import Point, chart
from docora.console.roles import VIEWER

pytestmark = [pytest.mark.django_db, pytest.mark.any_database]


@pytest.fixture
def admin(client: Client) -> Client:
    client.force_login(User.objects.create_superuser("admin"))
    return client


@pytest.mark.parametrize(
    "page", ["/admin/", "/admin/repositories/app/", "/admin/repositories/app/add/", "/admin/login/"]
)
def test_a_page_has_one_main_and_an_icon(admin: Client, page: str) -> None:
    if "login" in page:
        admin.logout()
    text = admin.get(page).content.decode()
    assert (text.count("<main"), text.count("</main>")) == (1, 1)
    assert text.index("<main") < text.index("</main>")
    assert 'rel="icon"' in text


def test_an_unknown_address_has_a_way_back(admin: Client) -> None:
    for address in ("/nowhere", "/admin/nowhere/", "/admin/repositories/app/999/do/ping/"):
        answer = admin.get(address)
        assert answer.status_code == 404
        assert 'href="/admin/"' in answer.content.decode()
        assert "plain.css" in answer.content.decode()
        assert "style-src 'self'" in answer["Content-Security-Policy"]


def test_a_role_that_may_not_is_told_so_with_a_way_back(client: Client) -> None:
    client.force_login(User.objects.create_user(VIEWER, is_staff=True))
    answer = client.get(reverse("admin:auth_user_changelist"))
    assert answer.status_code == 403
    assert "Your role does not allow this" in answer.content.decode()
    assert 'href="/admin/"' in answer.content.decode()


def test_a_form_without_its_token_is_told_to_be_opened_again() -> None:
    answer = Client(enforce_csrf_checks=True).post("/admin/login/", {"username": "admin"})
    assert answer.status_code == 403
    assert "This form has expired" in answer.content.decode()


def test_an_error_has_a_page_that_needs_no_database(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise DatabaseError("gone")

    client.raise_request_exception = False
    monkeypatch.setattr("django.db.backends.utils.CursorWrapper.execute", fail)
    client.cookies["sessionid"] = "somebody's"
    answer = client.get("/admin/")
    assert answer.status_code == 500
    assert "Something went wrong here" in answer.content.decode()
    assert 'href="/admin/"' in answer.content.decode()


def test_the_icon_is_where_browsers_look_for_it(client: Client) -> None:
    assert client.get("/favicon.ico")["Location"] == "/static/docora/icon.svg"


def test_the_documentation_of_the_api_fits_a_phone_and_follows_the_dark(client: Client) -> None:
    for address in ("/api/docs", "/api/v1/docs"):
        text = client.get(address).content.decode()
        assert 'name="viewport"' in text
        assert "<main" in text
        assert "docora/api-docs.js" in text
        assert "style=" not in text
        assert re.findall(r"<script(?![^>]*(src=|application/json))", text) == []


def test_a_chart_has_an_axis_that_ends_above_its_highest_bar() -> None:
    tops = {
        most: chart("x", [Point(title="", good=most)], unit="", first="", last="").ticks[0] for most in (0, 3, 7, 41)
    }
    assert tops == {0: "2", 3: "4", 7: "10", 41: "100"}
    drawn = chart("x", [Point(title="", good=5, bad=5)], unit="", first="", last="", legend=("accepted", "failed"))
    assert (drawn.ticks, drawn.bars[0].good, drawn.bars[0].bad_y) == (("10", "5", "0"), 50, 0)


def test_an_empty_chart_says_so_and_a_full_one_has_a_legend(admin: Client) -> None:
    page = admin.get("/admin/").content.decode()
    assert page.count("Nothing in this time.") == page.count('<figure class="dc-card dc-chart">')
    assert "accepted" in page
