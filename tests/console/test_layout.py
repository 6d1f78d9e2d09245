"""Pages for everybody: landmarks, icons, errors with a way back, the documentation of the API."""

import html
import re

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import DatabaseError
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from benchmarks.populate import populate
from docora.console.base import BoundedPaginator
from docora.console.charts import Point, chart
from docora.console.roles import VIEWER
from repositories.models import Watch

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


class TestLongLists:
    """The name of the table has no part in how its rows are counted: users stand for all."""

    @pytest.fixture
    def many(self) -> None:
        User.objects.bulk_create(User(username=f"user-{number}") for number in range(1234))

    def test_rows_are_counted_with_separators_wherever_they_are(self, admin: Client, many: None) -> None:
        page = admin.get("/admin/auth/user/").content.decode()
        assert "1,235 users" in page
        assert "Select all 1,235 users" in page
        assert "All 1,235 users selected" in page
        assert "1235" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)

    def test_pages_are_links_that_open(self, admin: Client, many: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(site.get_model_admin(User), "list_per_page", 1)
        page = admin.get("/admin/auth/user/?p=1100&is_active__exact=1").content.decode()
        assert '<b aria-current="page">1,100</b>' in page
        links = dict(re.findall(r'<a class="dc-link" href="(\?[^"]*)">([\d,]+)</a>', page))
        last = next(link for link, number in links.items() if number == "1,235")
        answer = admin.get("/admin/auth/user/" + html.unescape(last))
        assert [user.username for user in answer.context["cl"].result_list] == ["user-999"]

    def test_a_list_that_is_not_counted_to_its_end_says_so(
        self, admin: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(BoundedPaginator, "MOST", 60)
        user, now = User.objects.get(), timezone.now()
        LogEntry.objects.bulk_create(LogEntry(user=user, action_flag=2, action_time=now) for _ in range(70))
        page = admin.get("/admin/admin/logentry/").content.decode()
        assert "60 or more log entries" in page

    def test_the_confirmation_counts_in_the_same_way(self, admin: Client) -> None:
        populate(apps=3, repositories=1100, files=1100)
        watches = list(Watch.objects.values_list("pk", flat=True))
        form = {"action": "resync_selected", "_selected_action": watches[:1], "select_across": "1"}
        page = admin.post(reverse("admin:repositories_watch_changelist"), form).content.decode()
        assert f"<h2>Resync: {len(watches):,} watches</h2>" in page
        fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
        answer = admin.post(reverse("admin:repositories_watch_changelist"), {**fields, "confirmed": "yes"}, follow=True)
        assert f"0 of {len(watches):,}" in answer.content.decode()


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
