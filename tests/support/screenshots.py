"""`make screenshots`: every page of the admin, light, dark and on a phone, from a running service with made-up data.

They go into data/screenshots, and those that the README shows into docs/screenshots too.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Page, ViewportSize

from tests.support.browser import find_chromium, open_browser
from tests.support.service import ROOT, Service

FOLDER = ROOT / "data" / "screenshots"
DOCS = ROOT / "docs" / "screenshots"
IN_README = ["overview.png", "watch.png", "deliveries-dark.png", "overview-phone.png"]
PAGES = {
    "overview": "/admin/",
    "apps": "/admin/repositories/app/",
    "app": "/admin/repositories/app/3/change/",
    "onboarding": "/admin/repositories/app/add/",
    "delete-app": "/admin/repositories/app/3/do/remove/",
    "repositories": "/admin/repositories/repository/",
    "repository": "/admin/repositories/repository/12/change/",
    "watches": "/admin/repositories/watch/",
    "watch": "/admin/repositories/watch/4/change/",
    "snapshots": "/admin/snapshots/snapshot/",
    "deliveries": "/admin/snapshots/delivery/",
    "delivery": "/admin/snapshots/delivery/61/change/",
    "parked": "/admin/snapshots/parked/",
    "queue": "/admin/django_rq/dashboard/",
    "workers": "/admin/django_rq/dashboard/workers/0/",
    "users": "/admin/auth/user/",
    "log": "/admin/admin/logentry/",
}
POPULATE = "from benchmarks.populate import populate; populate(apps=60, repositories=400, files=40_000)"
DESKTOP = ViewportSize(width=1440, height=900)
PHONE = ViewportSize(width=390, height=844)


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("No Chromium is installed.")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with Service() as service, open_browser(chromium) as browser:
        service.manage("shell", "-c", POPULATE)
        context = browser.new_context(viewport=DESKTOP)
        page = context.new_page()
        log_in(page, service, service.first_password)
        onboard(page, service, folder)
        take(page, service, folder)
        page.emulate_media(color_scheme="dark")
        take(page, service, folder, suffix="-dark")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        take(page, service, folder, suffix="-phone")
    DOCS.mkdir(parents=True, exist_ok=True)
    for name in IN_README:
        shutil.copy(folder / name, DOCS / name)


def take(page: Page, service: Service, folder: Path, suffix: str = "") -> None:
    for name, path in PAGES.items():
        page.goto(service.url + path)
        page.screenshot(path=folder / f"{name}{suffix}.png")


def log_in(page: Page, service: Service, password: str) -> None:
    page.goto(f"{service.url}/admin/")
    page.fill("[name=username]", "admin")
    page.fill("[name=password]", password)
    page.click("[type=submit]")
    page.wait_for_url("**/admin/")


def onboard(page: Page, service: Service, folder: Path) -> None:
    page.goto(f"{service.url}/admin/repositories/app/add/")
    page.fill("[name=name]", "Company search")
    page.fill("[name=base_url]", "https://search.example.com/hooks")
    page.click("text=Onboard >> nth=-1")
    page.wait_for_selector("[data-copy]")
    page.screenshot(path=folder / "credentials.png")


if __name__ == "__main__":
    main()
