"""A Chromium that is installed on this machine, driven by Playwright, whose own browsers are never downloaded."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# It talks to nobody but the server under test.
_QUIET = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str | None:
    found = (shutil.which(name) for name in (os.environ.get("CHROMIUM", ""), *_NAMES) if name)
    return next((path for path in found if path), None)


@contextmanager
def open_browser(executable: str) -> Iterator[Browser]:
    # Chromium's sandbox refuses to run as root.
    options = [*_QUIET, "--no-sandbox"] if os.geteuid() == 0 else _QUIET
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=options)
        try:
            yield browser
        finally:
            browser.close()
