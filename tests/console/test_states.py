"""The states of docora/console/states.py: each is reached, and docs/admin.md has the same table."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from docora.console import cures, states
from docora.console.display import due, milliseconds, number, plural, span
from docora.console.roles import VIEWER
from docora.console.states import APP, REPOSITORY, WATCH, States
from repositories import accounts
from repositories.errors import all_errors
from repositories.models import App, Repository, Watch, WatchStatus
from snapshots.models import File, Parked

pytestmark = pytest.mark.django_db

ADMIN_PAGE = (Path(__file__).parent.parent.parent / "docs" / "admin.md").read_text()
COLOURS = {"good": "green", "bad": "red", "warn": "amber", "busy": "blue", "calm": "grey"}
NOW = timezone.now()
LATER, EARLIER = NOW + timedelta(hours=1), NOW - timedelta(hours=1)
FAILURE = {"retry_count": 99, "last_error": "503 Service Unavailable"}
WATCHES: dict[str, dict[str, Any]] = {
    "refused": {"status": WatchStatus.FAILED, "access_denied_at": NOW},
    "failed": {"status": WatchStatus.FAILED},
    "again": {"status": WatchStatus.SCANNING, **FAILURE},
    "scanning": {"status": WatchStatus.SCANNING},
    "retrying": {"status": WatchStatus.PENDING, "last_error": "503 Service Unavailable"},
    "pending": {"status": WatchStatus.PENDING},
    "synced": {"status": WatchStatus.SYNCED},
}
REPOSITORIES: dict[str, dict[str, Any]] = {
    "open": {"circuit_open_until": LATER, "consecutive_failures": 5},
    "repair": {"needs_repair": True},
    "failing": {"consecutive_failures": 1},
    "unseen": {},
    "healthy": {"last_checked_at": NOW},
}
APPS: dict[str, dict[str, Any]] = {
    "disabled": {"disabled_at": NOW},
    "failing": {"failing_since": EARLIER},
    "resting": {"resting_until": LATER},
    "slow": {"slow_since": EARLIER},
    "idle": {"resting_until": EARLIER},
    "active": {"resting_until": EARLIER},
}


@pytest.fixture
def watch() -> Watch:
    credentials = accounts.onboard("Alice's search", "https://search.example.com")
    repository = Repository.objects.create(url="https://github.com/acme/handbook", owner="acme", name="handbook")
    return Watch.objects.create(app=App.objects.get(public_id=credentials.app_id), repository=repository)


def park_a_file(watch: Watch) -> None:
    file = File.objects.create(repository=watch.repository, path="README.md", path_digest=b"d" * 32)
    Parked.objects.create(watch=watch, file=file, sha256=b"s" * 32, reason="413")


def name_of(states: States, row: Any) -> str:
    states.attach([row])
    assert states.count() == {row.shown_state.name: 1}
    return str(row.shown_state.name)


@pytest.mark.parametrize(("name", "fields"), WATCHES.items(), ids=list(WATCHES))
def test_a_watch_is_in(watch: Watch, name: str, fields: dict[str, Any]) -> None:
    Watch.objects.update(**fields)
    assert name_of(WATCH, watch) == name
    accounts.disable_app(watch.app, "for the test")
    assert name_of(WATCH, watch) == "disabled"


@pytest.mark.parametrize(("name", "fields"), REPOSITORIES.items(), ids=list(REPOSITORIES))
def test_a_repository_is_in(watch: Watch, name: str, fields: dict[str, Any]) -> None:
    Repository.objects.update(**fields)
    assert name_of(REPOSITORY, watch.repository) == name


@pytest.mark.parametrize(("name", "fields"), APPS.items(), ids=list(APPS))
def test_an_app_is_in(watch: Watch, name: str, fields: dict[str, Any]) -> None:
    App.objects.update(**fields)
    Watch.objects.update(synced_at=None if name == "idle" else NOW)
    assert name_of(APP, watch.app) == name


def test_parked_files_are_a_state_of_the_watch_and_of_its_app(watch: Watch) -> None:
    park_a_file(watch)
    assert (name_of(WATCH, watch), name_of(APP, watch.app)) == ("pending", "refusing")
    Watch.objects.update(status=WatchStatus.SYNCED)
    assert name_of(WATCH, watch) == "parked"


def test_a_repository_is_unreadable_when_no_watch_of_it_has_an_accepted_token(watch: Watch) -> None:
    Watch.objects.update(access_denied_at=NOW)
    assert name_of(REPOSITORY, watch.repository) == "unreadable"
    other = App.objects.get(public_id=accounts.onboard("Bob's wiki", "https://wiki.example.com").app_id)
    Watch.objects.create(app=other, repository=watch.repository)
    assert name_of(REPOSITORY, watch.repository) != "unreadable"


def test_no_state_is_left_out_here() -> None:
    assert {*WATCHES, "disabled", "parked"} == {state.name for state in WATCH.all}
    assert {*REPOSITORIES, "unreadable"} == {state.name for state in REPOSITORY.all}
    assert {*APPS, "refusing"} == {state.name for state in APP.all}


def table_after(heading: str) -> list[tuple[str, ...]]:
    section = ADMIN_PAGE.split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return [tuple(row) for row in rows[2:]]


@pytest.mark.parametrize(
    ("heading", "states"), [("Of a watch", WATCH), ("Of a repository", REPOSITORY), ("Of an app", APP)]
)
def test_the_documentation_has_every_state_with_its_colour_and_cure(heading: str, states: States) -> None:
    wanted = [(state.label, COLOURS[state.tone], state.meaning, state.cure) for state in states.all]
    assert table_after(heading) == wanted


def test_the_documentation_has_every_reason_with_its_cure() -> None:
    hints = {f"`{error.code}`": error.hint for error in all_errors() if error.hint}
    assert table_after("Reasons") == sorted(hints.items())


def test_each_state_is_a_filter_of_its_list(client: Client, watch: Watch) -> None:
    client.force_login(User.objects.create_superuser("admin"))
    park_a_file(watch)
    for model, states_of_it in (("watch", WATCH), ("repository", REPOSITORY), ("app", APP)):
        row = states_of_it.model._default_manager.get()
        states_of_it.attach([row])
        for state in states_of_it.all:
            page = client.get(reverse(f"admin:repositories_{model}_changelist"), {"state": state.name})
            assert len(page.context["cl"].result_list) == (state == row.shown_state), state.name  # type: ignore[attr-defined]


CURES = [(error.code, error.hint) for error in all_errors() if error.hint] + [
    (f"{kind.model.__name__} {state.name}", state.cure) for kind in (WATCH, REPOSITORY, APP) for state in kind.all
]


@pytest.mark.any_database
@pytest.mark.parametrize("text", [text for _, text in CURES], ids=[name for name, _ in CURES])
def test_every_link_of_a_cure_opens_for_an_operator_and_none_to_a_button_is_shown_to_a_viewer(
    client: Client, watch: Watch, text: str
) -> None:
    Watch.objects.update(status=WatchStatus.FAILED)
    Repository.objects.update(consecutive_failures=1)
    park_a_file(watch)
    client.force_login(User.objects.create_superuser("admin"))
    for subject in (cures.of_watch(watch), cures.Subject(app=watch.app), cures.Subject(repository=watch.repository)):
        shown = cures.linked(text, subject, may_operate=True)
        assert re.sub(r"<[^>]*>", "", shown).replace("&#x27;", "'") == text
        for url in re.findall(r'href="([^"]*)"', shown):
            if "/enable/" not in url:  # it leads back from an app that is enabled
                assert client.get(url.replace("&amp;", "&")).status_code == 200, url
        assert "/do/" not in cures.linked(text, subject, may_operate=False)


def test_a_cure_names_its_buttons_as_links(watch: Watch) -> None:
    shown = cures.linked("Ping it, look at its deliveries, then retry.", cures.of_watch(watch), may_operate=True)
    ping, deliveries, retry = re.findall(r'href="([^"]*)">([^<]*)</a>', shown)
    assert ping == (reverse("admin:repositories_app_ping", args=[watch.app.pk]), "Ping it")
    assert deliveries[1] == "look at its deliveries"
    assert retry == (reverse("admin:repositories_watch_retry", args=[watch.pk]), "retry")


def test_a_viewer_reads_the_cure_of_a_failed_watch_without_its_buttons(client: Client, watch: Watch) -> None:
    Watch.objects.update(status=WatchStatus.FAILED, last_error_code="delivery-failed", last_error="503")
    user = User.objects.create_user("vera", is_staff=True)
    user.groups.add(Group.objects.get(name=VIEWER))
    client.force_login(user)
    page = client.get(reverse("admin:repositories_watch_change", args=[watch.pk])).content.decode()
    assert "then retry." in page
    assert "/do/" not in page


def test_a_time_that_has_passed_is_due_and_not_ago() -> None:
    assert "due now" in due(EARLIER)
    assert "in 59 min" in due(timezone.now() + timedelta(minutes=59, seconds=30))


def test_numbers_and_durations_have_one_format() -> None:
    assert [number(1234567), plural(1, "watch", "watches"), plural(2, "file"), plural(0, "job")] == [
        "1,234,567",
        "1 watch",
        "2 files",
        "0 jobs",
    ]
    assert [milliseconds(count) for count in (0, 999, 1000, 12_345, 90_000, None)] == [
        "0 ms",
        "999 ms",
        "1.0 s",
        "12.3 s",
        "1 min 30 s",
        "-",
    ]
    seconds = (0, 59, 61, 3600, 7300, 36_000, 90_000, 10 * 86400)
    assert [span(timedelta(seconds=each)) for each in seconds] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "1 h",
        "2 h 1 min",
        "10 h",
        "1 d 1 h",
        "10 d",
    ]
    assert states.WATCH.named("synced").label == "synced"
