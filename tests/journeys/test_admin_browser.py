"""An operator's day in a real browser: onboard an app, see it sync, see it fail and why, cure it, delete it."""

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import ConsoleMessage, Page, expect

from docora.demo.githost import GitHost
from docora.demo.receiver import Receiver, ReceiverFault
from tests.support.browser import find_chromium, open_browser
from tests.support.service import Service, wait_until

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium: apt-get install chromium"),
]
SECONDS = 30_000.0
expect.set_options(timeout=SECONDS)
PAGES = [
    "admin/",
    "admin/repositories/app/",
    "admin/repositories/app/add/",
    "admin/repositories/app/1/change/",
    "admin/repositories/app/1/do/remove/",
    "admin/repositories/repository/",
    "admin/repositories/repository/1/change/",
    "admin/repositories/watch/",
    "admin/repositories/watch/1/change/",
    "admin/repositories/hook/",
    "admin/repositories/hook/1/change/",
    "admin/repositories/hook/add/",
    "admin/repositories/githubgrant/",
    "admin/repositories/githubgrant/add/",
    "admin/snapshots/snapshot/",
    "admin/snapshots/snapshot/1/change/",
    "admin/snapshots/delivery/",
    "admin/snapshots/delivery/1/change/",
    "admin/django_rq/dashboard/",
    "admin/auth/group/1/change/",
    "admin/auth/user/1/change/",
    "admin/admin/logentry/",
    "api/v1/docs",
]
KEY = "the-key-of-the-company-search"


@pytest.fixture
def git_host(tmp_path: Path) -> Iterator[GitHost]:
    with GitHost(tmp_path / "host") as host:
        yield host


@pytest.fixture
def hasty(sqlite_service: Service, git_host: GitHost) -> Service:
    """Looks every second, and gives up at the first failure, for an hour."""
    sqlite_service.environment |= {
        "DOCORA_GIT_HOSTS": git_host.address,
        "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        "SCAN_INTERVAL": "1",
        "RESCAN_INTERVAL": "1",
        "MAX_RETRY_ATTEMPTS": "1",
        "RETRY_BASE_DELAY": "3600",
    }
    return sqlite_service.start()


@pytest.fixture
def page(hasty: Service) -> Iterator[Page]:
    """Signed in as the first admin. Whatever it loads comes from the service, and its console has no errors."""
    loaded: list[str] = []
    errors: list[str] = []

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"{message.page and message.page.url}: {message.text}")

    with open_browser(CHROMIUM or "") as browser:
        page = browser.new_page(color_scheme="dark")
        page.set_default_timeout(SECONDS)
        page.on("request", lambda request: loaded.append(request.url))
        page.on("pageerror", lambda error: errors.append(f"{page.url}: {error}"))
        page.on("console", note)
        page.goto(f"{hasty.url}/admin/")
        page.get_by_label("Username").fill("admin")
        page.get_by_label("Password").fill(hasty.first_password)
        page.keyboard.press("Enter")
        expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
        yield page
    assert [url for url in loaded if not url.startswith((hasty.url, "data:", "blob:"))] == []
    assert errors == []


def onboard(page: Page, service: Service, receiver: Receiver) -> str:
    """Returns the bearer token, which the page shows once."""
    page.goto(f"{service.url}/admin/repositories/app/add/")
    page.get_by_label("Name").fill("Company search")
    page.get_by_role("textbox", name="Base url").fill(receiver.url)
    page.get_by_label("Webhook key").fill(KEY)
    page.get_by_role("button", name="Onboard").click()
    token = page.get_by_label("Bearer token").input_value()
    assert token.startswith("docora_")
    page.get_by_role("button", name="Copy").nth(1).click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    page.reload()
    expect(page.get_by_text("sent already")).to_be_visible()
    assert token not in page.content()
    return token


def watch(service: Service, token: str, url: str, github_token: str = "") -> str:
    request = urllib.request.Request(  # noqa: S310  our own server
        f"{service.url}/api/repositories",
        data=json.dumps({"github_url": url, "github_token": github_token}).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        return str(json.load(answer)["repository_id"])


# Text that is cut off at the edge of its box, other than where one can scroll to it.
CLIPPED = """() => [...document.querySelectorAll("#result_list td, #result_list th, .dc td, .dc dd, .dc p, .dc-crumb")]
    .filter(box => box.offsetParent && box.scrollWidth > box.clientWidth + 1)
    .map(box => box.textContent.trim())"""
# The name of a value in a list, squeezed until its words break.
SQUEEZED = """() => [...document.querySelectorAll("#result_list tbody td, #result_list tbody th")]
    .map(box => [box, getComputedStyle(box, "::before")])
    .filter(([box, name]) => box.offsetParent && name.content !== "none" && name.flexShrink !== "0")
    .map(([box, name]) => name.content)"""
UNNAMED = """() => [...document.querySelectorAll("button, a[href]")]
    .filter(one => one.offsetParent && !one.getAttribute("aria-label") && !one.title)
    .filter(one => { const copy = one.cloneNode(true);
        copy.querySelectorAll("[aria-hidden=true]").forEach(part => part.remove());
        return !copy.textContent.trim() && !one.querySelector("img[alt], [title]"); })
    .map(one => one.outerHTML)"""


@contextmanager
def on_a_phone(page: Page) -> Iterator[None]:
    desk = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    yield
    page.set_viewport_size(desk or {"width": 1280, "height": 720})


def assert_fits_a_phone(page: Page, url: str) -> None:
    page.goto(url)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390, url
    assert page.evaluate(CLIPPED) == [], url
    assert page.evaluate(SQUEEZED) == [], url
    assert page.evaluate(UNNAMED) == [], url
    assert page.locator("main").count() == 1, url
    assert page.locator(".material-symbols-outlined:not([aria-hidden=true])").count() == 0, url


def open_one_page_of_each_kind(page: Page, service: Service) -> int:
    """Those of PAGES on a phone, then every link on them and behind, but to one row of each table; returns how many."""
    seen: dict[str, None] = {}
    waiting = [f"{service.url}/api/docs"]

    def note_links() -> None:
        hrefs = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
        waiting.extend(href for href in hrefs if href.startswith(f"{service.url}/admin/"))

    with on_a_phone(page):
        for path in PAGES:
            assert_fits_a_phone(page, f"{service.url}/{path}")
            seen[_kind(f"/{path}")] = None
            note_links()
    while waiting:
        url = waiting.pop()
        kind = _kind(urlsplit(url).path)
        if kind in seen or "logout" in kind or ".json" in kind:
            continue
        seen[kind] = None
        page.goto(url)
        note_links()
    return len(seen)


def _kind(path: str) -> str:
    return re.sub(r"\d+", "N", path)


def test_an_operators_day(page: Page, hasty: Service, git_host: GitHost) -> None:
    handbook = git_host.create("acme/handbook")
    handbook.commit({"README.md": "# Handbook\n", "docs/start.md": "Start here.\n"})
    with Receiver(webhook_key=KEY) as receiver:
        token = onboard(page, hasty, receiver)
        repository_id = watch(hasty, token, handbook.url)

        page.get_by_role("link", name="Watches").first.click()
        page.get_by_role("link", name="Company search ← acme/handbook").click()
        console = page.locator("#console")
        expect(console.locator(".dc-badge").first).to_have_text("synced")
        wait_until(lambda: receiver.files_of(repository_id) == handbook.files(), "the files arrive")

        page.goto(f"{hasty.url}/admin/")
        with receiver.faults.put(ReceiverFault(status=500)):
            handbook.commit({"README.md": "# The new handbook\n"})
            expect(page.get_by_text("500 Internal Server Error")).to_be_visible()
            expect(page.get_by_text("Ping it, look at its deliveries, then retry.")).to_be_visible()

        page.get_by_role("button", name="Retry: Company search ← acme/handbook").press("Enter")
        expect(page.get_by_text("is being delivered to Company search again")).to_be_visible()
        expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
        wait_until(lambda: receiver.files_of(repository_id) == handbook.files(), "the change arrives")

        hasty.manage("host_hook", git_host.address)
        assert open_one_page_of_each_kind(page, hasty) > 30
        page.goto(f"{hasty.url}/admin/")
        page.get_by_role("link", name="Apps").first.click()
        page.get_by_role("link", name="Company search").click()
        page.get_by_role("link", name="Delete").click()
        expect(page.get_by_text("1 repository that nobody else watches")).to_be_visible()
        page.get_by_label("Type Company search to go on").fill("Company search")
        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_text("Company search is deleted.")).to_be_visible()
        wait_until(lambda: not list((hasty.data / "repos").glob("*/*/HEAD")), "the clone is purged")
        assert receiver.problems == []
