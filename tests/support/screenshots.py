"""`make screenshots`: every page, light, dark and on a phone, from a running service with made-up data.

They go into data/screenshots, and those that the README shows into docs/screenshots too.
"""

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import FloatRect, Page, ViewportSize

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
    "rotate-token": "/admin/repositories/app/3/do/rotate_bearer/",
    "disable": "/admin/repositories/app/3/do/disable/",
    "app-disabled": "/admin/repositories/app/8/change/",
    "delete-app": "/admin/repositories/app/3/do/remove/",
    "repositories": "/admin/repositories/repository/",
    "repository": "/admin/repositories/repository/12/change/",
    "repositories-open": "/admin/repositories/repository/?state=open",
    "purge": "/admin/repositories/repository/12/do/purge/",
    "watches": "/admin/repositories/watch/",
    "watches-disabled": "/admin/repositories/watch/?state=disabled",
    "watches-parked": "/admin/repositories/watch/?state=parked",
    "watch": "/admin/repositories/watch/4/change/",
    "watch-disabled": "/admin/repositories/watch/8/change/",
    "redeliver-since": "/admin/repositories/watch/4/do/redeliver_since/",
    "change-token": "/admin/repositories/watch/4/do/change_token/",
    "edit-filters": "/admin/repositories/watch/4/do/edit_filters/",
    "unwatch": "/admin/repositories/watch/4/do/unwatch/",
    "snapshots": "/admin/snapshots/snapshot/",
    "snapshot": "/admin/snapshots/snapshot/1/change/",
    "deliveries": "/admin/snapshots/delivery/",
    "deliveries-of-a-watch": "/admin/snapshots/delivery/?watch__id__exact=5",
    "delivery": "/admin/snapshots/delivery/61/change/",
    "parked": "/admin/snapshots/parked/",
    "parked-file": "/admin/snapshots/parked/1/change/",
    "queue": "/admin/django_rq/dashboard/",
    "queue-later": "/admin/django_rq/dashboard/?queue=deliveries&state=later",
    "queue-empty": "/admin/django_rq/dashboard/?queue=snapshots&state=failed",
    "job": "/admin/django_rq/dashboard/jobs/deliver-4/",
    "delete-jobs": "/admin/django_rq/dashboard/all/deliveries/later/delete/",
    "hooks": "/admin/repositories/hook/",
    "hook": "/admin/repositories/hook/1/change/",
    "add-hook": "/admin/repositories/hook/add/",
    "change-secret": "/admin/repositories/hook/1/do/change_secret/",
    "grants": "/admin/repositories/githubgrant/",
    "grant": "/admin/repositories/githubgrant/1/change/",
    "add-grant": "/admin/repositories/githubgrant/add/",
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
# What `populate` has none of: hooks, grants, completed commits, a file in pieces, and a user who may only look.
MORE = """
from datetime import timedelta
from django.contrib.auth.models import Group, User
from django.utils import timezone
from repositories import accounts, hooks
from repositories.base import queue
from repositories.models import App, Watch
from snapshots.models import Completion, Delivery
for watch in Watch.objects.all()[:3]:
    hook, _ = hooks.open_for(watch)
    with queue.connection().pipeline() as pipeline:
        hooks.note(hook.public_id, pipeline, event="push", outcome="accepted")
        hooks.note(hook.public_id, pipeline, event="push", outcome="refused", error="The proof is missing or wrong.")
        pipeline.execute()
hooks.open_for_host("github.com")
for number, app in enumerate(App.objects.all()[:3]):
    accounts.grant(app, "acme/*" if number else "acme/handbook")
counts = dict.fromkeys(["created", "updated", "deleted", "parked", "left_out", "files"], 1)
for number, watch in enumerate(Watch.objects.all()[:90]):
    Completion.objects.create(
        watch=watch, app=watch.app, sequence=3, commit_sha="c" * 40, digest="d" * 64, noticed_at=timezone.now(),
        latency_ms=300 + 7919 * number % 4000, completed_at=timezone.now() - timedelta(minutes=number), pending=False,
        **counts,
    )
for piece in (1, 2, 3):
    Delivery.objects.create(
        watch_id=5, message_id=f"msg_{piece}", event="create", path="figures/large.png", piece=piece, pieces=3,
        status=200, milliseconds=40,
    )
User.objects.create_user("vera", password="looks-only-2026", is_staff=True).groups.add(Group.objects.get(name="viewer"))
"""
FORBIDDEN = "/admin/auth/user/"
# A page whose table is away for a moment.
BROKEN = "/admin/snapshots/parked/"
RENAME = "from django.db import connection; connection.cursor().execute('ALTER TABLE {} RENAME TO {}')"
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
LONGEST = 2600
LOOKS: list[tuple[str, ViewportSize, Literal["light", "dark"]]] = [
    ("", DESKTOP, "light"),
    ("-dark", DESKTOP, "dark"),
    ("-phone", PHONE, "light"),
]


def main() -> None:
    chromium = find_chromium()
    if chromium is None:
        sys.exit("No Chromium is installed.")
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    # It ticks once: nothing that is made up is looked at, and fails, while pictures are taken.
    with Service(SCAN_INTERVAL="86400") as service, open_browser(chromium) as browser:
        service.manage("shell", "-c", POPULATE)
        service.manage("shell", "-c", MORE)
        page = browser.new_context(viewport=DESKTOP).new_page()
        take(page, service, folder, {"sign-in": "/admin/login/"})
        log_in(page, service, "admin", service.first_password)
        onboard(page, service, folder)
        service.manage("shell", "-c", JOBS)
        take(page, service, folder, PAGES)
        viewer = browser.new_context(viewport=DESKTOP).new_page()
        log_in(viewer, service, "vera", "looks-only-2026")
        take(viewer, service, folder, {"forbidden": FORBIDDEN, "watch-viewer": "/admin/repositories/watch/4/change/"})
        service.manage("shell", "-c", RENAME.format("snapshots_parked", "away"))
        take(page, service, folder, {"error": BROKEN})
        service.manage("shell", "-c", RENAME.format("away", "snapshots_parked"))
    DOCS.mkdir(parents=True, exist_ok=True)
    for name in IN_README:
        shutil.copy(folder / name, DOCS / name)


def take(page: Page, service: Service, folder: Path, pages: dict[str, str]) -> None:
    """Each in three looks; those that the README does not show with what one scrolls to."""
    for suffix, size, scheme in LOOKS:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        for name, path in pages.items():
            page.goto(service.url + path)
            page.wait_for_load_state("networkidle")
            file = f"{name}{suffix}.png"
            length = size["height"] if file in IN_README else page.evaluate("document.documentElement.scrollHeight")
            clip = FloatRect(x=0, y=0, width=size["width"], height=min(length, LONGEST))
            page.screenshot(path=folder / file, full_page=True, clip=clip)
    page.set_viewport_size(DESKTOP)
    page.emulate_media(color_scheme="light")


def log_in(page: Page, service: Service, name: str, password: str) -> None:
    page.goto(f"{service.url}/admin/")
    page.fill("[name=username]", name)
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
