"""Every state of docs/admin.md, made with real receivers and a real git host, seen in a real browser, and cured.

What the list, the page and the overview show is compared with the database, and the files that the console counts with
those that the receiver has.
"""

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import urljoin

import pytest
from playwright.sync_api import Locator, Page, expect

from docora.console.states import APP, REPOSITORY, WATCH, State, States
from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from tests.journeys.test_admin_browser import CHROMIUM, git_host, page, watch
from tests.support.service import Service, wait_until

__all__ = ["git_host", "page"]  # fixtures
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium: apt-get install chromium"),
]

KEY = "the-key-of-all-these-receivers"
CAST = ["healthy", "picky", "gone", "broken", "pausing", "slow", "barred", "flaky", "huge", "busy", "late"]
KINDS: dict[str, States] = {"watch": WATCH, "repository": REPOSITORY, "app": APP}
# How the lists name the rows.
LINKS = {"watch": "{name} ← acme/{name}", "repository": "acme/{name}", "app": "{name}"}
# What the database says of each state, in words of its own.
_ENABLED = "a.disabled_at IS NULL AND w.access_denied_at IS NULL"
_PARKED = "EXISTS (SELECT 1 FROM snapshots_parked p WHERE p.watch_id = w.id)"
TRUTH = {
    "watch": {
        "disabled": "a.disabled_at IS NOT NULL",
        "refused": "a.disabled_at IS NULL AND w.access_denied_at IS NOT NULL",
        "failed": f"{_ENABLED} AND w.status = 'failed'",
        "again": f"{_ENABLED} AND w.status IN ('scanning', 'pending_snapshot') AND w.retry_count >= 2",
        "scanning": f"{_ENABLED} AND w.status = 'scanning' AND w.retry_count < 2",
        "retrying": f"{_ENABLED} AND w.status = 'pending_snapshot' AND w.retry_count < 2 AND w.last_error <> ''",
        "pending": f"{_ENABLED} AND w.status = 'pending_snapshot' AND w.last_error = ''",
        "parked": f"{_ENABLED} AND w.status = 'synced' AND {_PARKED}",
        "synced": f"{_ENABLED} AND w.status = 'synced' AND NOT {_PARKED}",
    },
    "repository": {
        "open": "r.circuit_open_until > datetime('now')",
        "unreadable": "r.circuit_open_until IS NULL AND w.access_denied_at IS NOT NULL",
        "repair": "r.needs_repair AND r.consecutive_failures = 0",
        "failing": "r.consecutive_failures > 0 AND r.circuit_open_until IS NULL",
        "unseen": "r.last_checked_at IS NULL AND r.sequence = 0",
        "healthy": "r.last_checked_at IS NOT NULL AND r.consecutive_failures = 0 AND w.access_denied_at IS NULL",
    },
    "app": {
        "disabled": "a.disabled_at IS NOT NULL",
        "failing": "a.disabled_at IS NULL AND a.failing_since IS NOT NULL",
        "resting": "a.failing_since IS NULL AND a.resting_until > datetime('now')",
        "refusing": f"a.failing_since IS NULL AND {_PARKED}",
        "slow": "a.failing_since IS NULL AND a.slow_since IS NOT NULL",
        "idle": "a.failing_since IS NULL AND w.synced_at IS NULL AND w.files = 0",
        "active": f"a.failing_since IS NULL AND a.slow_since IS NULL AND w.files > 0 AND NOT {_PARKED}",
    },
}


@pytest.fixture
def hasty(sqlite_service: Service, git_host: GitHost) -> Service:
    """Looks every second; two attempts, an hour apart, so that a state lasts until it is cured."""
    sqlite_service.environment |= {
        "DOCORA_GIT_HOSTS": git_host.address,
        "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
        "SCAN_INTERVAL": "1",
        "RESCAN_INTERVAL": "1",
        "MAX_RETRY_ATTEMPTS": "2",
        "RETRY_BASE_DELAY": "3600",
        "CIRCUIT_BREAKER_THRESHOLD": "1000",
        "DOCORA_MAX_REPOSITORY_BYTES": "1000000",
        "DOCORA_WEBHOOK_TIMEOUT": "600",
        "DOCORA_GIT_STALL_TIMEOUT": "600",
    }
    return sqlite_service.start()


@dataclass
class Stage:
    """One app, one receiver and one repository of each name."""

    page: Page
    service: Service
    host: GitHost
    receivers: dict[str, Receiver]
    repositories: dict[str, HostedRepository]
    tokens: dict[str, str]
    ids: dict[str, str]
    seen: set[tuple[str, str]] = field(default_factory=set)
    pages: dict[tuple[str, str], str] = field(default_factory=dict)
    """The page of each kind and name, as the list has linked it."""

    def watch(self, name: str, token: str = "") -> None:
        self.ids[name] = watch(self.service, self.tokens[name], self.repositories[name].url, token)

    def ask(self, kind: str, state: str, name: str = "%") -> int:
        """How many rows of that name the database says are in the state."""
        with sqlite3.connect(self.service.data / "docora.sqlite3") as database:
            question = f"""SELECT COUNT(*) FROM repositories_watch w JOIN repositories_app a ON a.id = w.app_id
                JOIN repositories_repository r ON r.id = w.repository_id
                WHERE a.name LIKE ? AND ({TRUTH[kind][state]})"""  # noqa: S608  the words above
            return int(database.execute(question, [name]).fetchone()[0])

    def shows(self, kind: str, states: dict[str, str]) -> None:
        """The list and the page of each name show its state, and the database agrees."""
        for name, state in states.items():
            wait_until(lambda: self.ask(kind, state, name) == 1, f"the {kind} of {name} is {state}")  # noqa: B023
        question = next(iter(states)) if len(states) == 1 else ""
        self.page.goto(f"{self.service.url}/admin/repositories/{kind}/?q={question}")
        for name, state in states.items():
            row = self._row(kind, name)
            self._has_badge(row.locator(".dc-badge").first, KINDS[kind].named(state))
            if kind == "watch":
                self._counts_what_the_receiver_has(name, row.inner_text())
            self.pages[kind, name] = urljoin(self.page.url, row.get_by_role("link").first.get_attribute("href"))
        for name, state in states.items():
            self.page.goto(self.pages[kind, name])
            self._has_badge(self.page.locator(".dc-facts .dc-badge").first, KINDS[kind].named(state))
            cure = self.page.locator(".dc-facts div", has=self.page.get_by_text("What to do", exact=True))
            expect(cure).to_have_count(1)
            assert self.ask(kind, state, name) == 1
            self.seen.add((kind, state))

    def _row(self, kind: str, name: str) -> Locator:
        link = self.page.get_by_role("link", name=LINKS[kind].format(name=name), exact=True)
        return self.page.locator("#result_list tbody tr", has=link)

    @staticmethod
    def _has_badge(badge: Locator, state: State) -> None:
        expect(badge).to_contain_text(state.label)
        assert f"dc-{state.tone}" in (badge.get_attribute("class") or "")

    def _counts_what_the_receiver_has(self, name: str, row: str) -> None:
        has = len(self.receivers[name].files_of(self.ids[name]))
        total = len(self.repositories[name].files())
        if has == 0 and name in ("busy", "late"):  # not fetched
            counted = {"not counted yet"}
        else:
            counted = {f"{has} of {total}"} if has < total else {f"\t{has}", f"{has} of {total}"}
        assert any(words in row for words in counted), f"{name} has {has} of {total}; the list says {row!r}"

    def overview_agrees(self, *troubled: str) -> None:
        """It counts as the database does, and names what is in trouble, and nothing else."""

        def agrees() -> bool:
            self.page.goto(f"{self.service.url}/admin/")
            shown = {}
            for link in self.page.locator(".dc-states a").all():
                shown[link.locator(".dc-badge").inner_text()] = int(link.locator("b").inner_text())
            known = {state.label: self.ask("watch", state.name) for state in WATCH.all}
            subjects = self.page.locator(".dc-troubles li b").all_inner_texts()
            named = {name for name in CAST if any(name in subject for subject in subjects)}
            return {label: shown.get(label, 0) for label in known} == known and named == set(troubled)

        # Each time, the browser loads a page, and takes the CPU from the workers that the page is to tell of.
        wait_until(agrees, f"the overview agrees with the database, and names {troubled}", pause=1.0)

    def press(self, kind: str, name: str, button: str) -> None:
        self.page.goto(self.pages[kind, name])
        toolbar = self.page.get_by_role("toolbar")
        toolbar.get_by_role("button", name=button, exact=True).or_(
            toolbar.get_by_role("link", name=button, exact=True)
        ).click()

    def confirm(self, button: str) -> None:
        self.page.locator("main form").get_by_role("button", name=button, exact=True).click()


@pytest.fixture
def stage(page: Page, hasty: Service, git_host: GitHost) -> Iterator[Stage]:
    with ExitStack() as stack:
        receivers = {name: stack.enter_context(Receiver(webhook_key=KEY)) for name in CAST}
        urls = {name: receiver.url for name, receiver in receivers.items()}
        script = (
            "import json; from repositories.accounts import onboard;"
            f"made = {{name: onboard(name, url, webhook_key={KEY!r}) for name, url in {urls!r}.items()}};"
            "print(json.dumps({name: each.bearer_token for name, each in made.items()}))"
        )
        tokens = json.loads(hasty.manage("shell", "-c", script).stdout.splitlines()[-1])
        repositories = {
            name: git_host.create(f"acme/{name}", private_to={"ghp_first"} if name == "barred" else None)
            for name in CAST
        }
        for repository in repositories.values():
            repository.commit({"README.md": "# Handbook\n", "docs/start.md": "Start here.\n"})
        yield Stage(page, hasty, git_host, receivers, repositories, tokens, {})


def test_every_state_is_shown_as_it_is_and_its_cure_works(stage: Stage) -> None:
    faults = {
        "picky": ReceiverFault(path="README.md", status=422),
        "gone": ReceiverFault(status=410),
        "broken": ReceiverFault(status=500),
        "pausing": ReceiverFault(path="docs/start.md", status=429, headers={"Retry-After": "900"}),
        "slow": ReceiverFault(delay=5),
    }
    for name, fault in faults.items():
        stage.receivers[name].faults.put(fault)
    for name in CAST[:9]:
        stage.watch(name, "ghp_first" if name == "barred" else "")

    watch_states = {
        "healthy": "synced",
        "picky": "parked",
        "gone": "disabled",
        "broken": "retrying",
        "pausing": "retrying",
        "slow": "synced",
        "barred": "synced",
        "flaky": "synced",
        "huge": "synced",
    }
    app_states = {
        "healthy": "active",
        "picky": "refusing",
        "gone": "disabled",
        "broken": "failing",
        "pausing": "resting",
        "slow": "slow",
    }
    stage.shows("watch", watch_states)
    stage.shows("app", app_states)
    stage.shows("repository", {"healthy": "healthy"})

    stage.host.revoke(stage.repositories["barred"], "ghp_first")
    stage.shows("watch", {"barred": "refused"})
    stage.shows("repository", {"barred": "unreadable"})

    away = stage.host.faults.put(GitFault(status=500, repository=stage.repositories["flaky"]))
    stage.shows("repository", {"flaky": "failing"})
    stage.press("repository", "flaky", "Snapshot now")
    stage.shows("watch", {"flaky": "failed"})

    stage.repositories["huge"].commit({"disk.img": os.urandom(3_000_000)})
    stage.shows("repository", {"huge": "open"})
    stage.repositories["huge"].commit({"disk.img": None})

    stage.press("watch", "broken", "Retry")
    stage.shows("watch", {"broken": "failed"})
    stage.overview_agrees("picky", "gone", "broken", "barred", "flaky", "huge")
    hang = stage.receivers["broken"].faults.put(ReceiverFault(hang=True))
    stage.press("watch", "broken", "Retry")
    stage.shows("watch", {"broken": "again"})

    held = stage.host.faults.put(GitFault(hang=True, kinds=["fetch"], repository=stage.repositories["busy"]))
    stage.watch("busy")
    stage.shows("watch", {"busy": "scanning"})
    stage.watch("late")
    stage.shows("watch", {"late": "pending"})
    stage.shows("app", {"late": "idle"})
    stage.shows("repository", {"late": "unseen"})
    stage.press("repository", "healthy", "Re-clone")
    stage.confirm("Re-clone")
    stage.shows("repository", {"healthy": "repair"})
    stage.overview_agrees("picky", "gone", "broken", "barred", "flaky", "huge")
    assert stage.seen == {(kind, state.name) for kind, states in KINDS.items() for state in states.all}

    # The endpoints and hosts are mended; then each cure, as the console names it.
    for each in (*faults.values(), away, held, hang):
        each.lift()
    stage.press("watch", "picky", "Retry parked files")
    expect(stage.page.get_by_role("toolbar").get_by_role("button")).not_to_have_count(0)
    stage.page.goto(f"{stage.service.url}/admin/repositories/watch/?q=gone")
    stage.page.locator("#result_list tbody tr").get_by_role("link").first.click()
    buttons = stage.page.get_by_role("toolbar").locator("button, a")
    expect(buttons).to_have_count(1)
    expect(buttons).to_contain_text("Enable")
    buttons.click()
    stage.press("watch", "pausing", "Retry")
    stage.host.grant(stage.repositories["barred"], "ghp_second")
    stage.press("watch", "barred", "Change token")
    stage.page.get_by_label("Token").fill("ghp_second")
    stage.confirm("Change token")
    stage.page.goto(f"{stage.service.url}/admin/repositories/repository/?q=huge")
    stage.page.locator("#result_list tbody input[type=checkbox]").first.check()
    stage.page.locator("select[name=action]").first.select_option(label="Reset circuit")
    stage.page.locator("button[name=index], [type=submit]").filter(has_text="Run").first.click()
    expect(stage.page.get_by_text("Done: 1 of 1")).to_be_visible()

    for name, repository in stage.repositories.items():
        receiver = stage.receivers[name]
        wait_until(
            lambda receiver=receiver, name=name, repository=repository: (  # type: ignore[misc]
                receiver.files_of(stage.ids[name]) == repository.files()
            ),
            f"{name} has every file",
        )
        # These took a message in after Docora had stopped waiting for the answer, so it came again.
        assert name in ("slow", "broken") or receiver.problems == []
    stage.shows("watch", dict.fromkeys(CAST, "synced"))
    stage.shows("repository", dict.fromkeys(CAST, "healthy"))
    stage.overview_agrees()
    expect(stage.page.get_by_text("Nothing needs attention.")).to_be_visible()
