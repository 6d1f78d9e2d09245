"""`make screenshots`: every page, light, dark and on a phone, from a running service with made-up data.

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
    "app-history": "/admin/repositories/app/3/history/",
    "onboarding": "/admin/repositories/app/add/",
    "ping": "/admin/repositories/app/3/do/ping/",
    "rotate-key": "/admin/repositories/app/3/do/rotate_key/",
    "delete-app": "/admin/repositories/app/3/do/remove/",
    "repositories": "/admin/repositories/repository/",
    "repository": "/admin/repositories/repository/12/change/",
    "purge": "/admin/repositories/repository/12/do/purge/",
    "watches": "/admin/repositories/watch/",
    "watches-disabled": "/admin/repositories/watch/?state=disabled",
    "watches-parked": "/admin/repositories/watch/?state=parked",
    "watch": "/admin/repositories/watch/4/change/",
    "watch-disabled": "/admin/repositories/watch/8/change/",
    "redeliver-since": "/admin/repositories/watch/4/do/redeliver_since/",
    "change-token": "/admin/repositories/watch/4/do/change_token/",
    "unwatch": "/admin/repositories/watch/4/do/unwatch/",
    "snapshots": "/admin/snapshots/snapshot/",
    "snapshot": "/admin/snapshots/snapshot/1/change/",
    "deliveries": "/admin/snapshots/delivery/",
    "delivery": "/admin/snapshots/delivery/61/change/",
    "parked": "/admin/snapshots/parked/",
    "parked-file": "/admin/snapshots/parked/1/change/",
    "queue": "/admin/django_rq/dashboard/",
    "queue-later": "/admin/django_rq/dashboard/?queue=deliveries&state=later",
    "queue-empty": "/admin/django_rq/dashboard/?queue=snapshots&state=failed",
    "job": "/admin/django_rq/dashboard/jobs/deliver-4/",
    "delete-jobs": "/admin/django_rq/dashboard/all/deliveries/later/delete/",
    "users": "/admin/auth/user/",
    "user": "/admin/auth/user/1/change/",
    "add-user": "/admin/auth/user/add/",
    "roles": "/admin/auth/group/",
    "role": "/admin/auth/group/1/change/",
    "log": "/admin/admin/logentry/",
    "not-found": "/admin/nowhere/",
    "api-docs": "/api/v1/docs",
}
POPULATE = "from benchmarks.populate import populate; populate(apps=60, repositories=400, files=40_000)"
# Jobs that stay, to be seen: they are put off.
JOBS = """
from datetime import timedelta
from repositories.base import queue
for number in range(1, 70):
    later, deliver = timedelta(hours=1), "snapshots.jobs.deliver"
    queue.named(queue.DELIVERIES).enqueue_in(later, deliver, number, job_id=f"deliver-{number}")
"""
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
        service.manage("shell", "-c", JOBS)
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
        page.wait_for_load_state("networkidle")
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
