"""The change feed: a client that only pulls ends with what a client of webhooks has."""

import random
import threading
import time
from typing import Any

import pytest
from django.db import connection, transaction

from docora.demo.bare import executable
from docora.demo.githost import GitHost, HostedRepository
from docora.limits import seats
from repositories import watches
from repositories.models import Repository, Watch
from snapshots.models import FileVersion, Snapshot
from tests.support.api import Api
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


class Puller:
    """Keeps path → sha by the feed alone, and refuses what cannot be."""

    def __init__(self, api: Api, repository_id: str, *, limit: int = 500) -> None:
        self.path = f"/api/repositories/{repository_id}/changes"
        self.files: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []
        self.commits: list[str] = []
        self.cursor = ""
        self._api = api
        self._limit = limit

    def pull(self) -> None:
        while self.pull_page():
            pass

    def pull_page(self) -> bool:
        page = self._api.get(f"{self.path}?since={self.cursor}&limit={self._limit}").json()
        for change in page["changes"]:
            self._apply(**change)
        self.cursor = page["cursor"]
        return bool(page["has_more"])

    def _apply(self, event: str, path: str, sha: str, previous_sha: str | None, commit_sha: str, **_: Any) -> None:
        self.seen.append((event, path))
        self.commits.append(commit_sha)
        if event == "created":
            assert path not in self.files
        else:
            assert self.files[path] == (previous_sha if event == "updated" else sha)
        self.files.pop(path, None)
        if event != "deleted":
            self.files[path] = sha


def look_again(work: Work) -> None:
    watches.request_snapshot(Repository.objects.get())
    work()


def listed(api: Api, repository_id: str) -> dict[str, str]:
    files = api.get(f"/api/repositories/{repository_id}/files").json()["files"]
    return {file["path"]: file["sha"] for file in files}


def test_the_feed_begins_with_every_file_and_goes_on_with_changes(
    alice_api: Api, repository_id: str, remote: HostedRepository, work: Work
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    assert {event for event, _ in puller.seen} == {"created"}
    assert puller.files == listed(alice_api, repository_id)
    assert set(puller.commits) == {remote.tip()}
    puller.seen.clear()
    first = remote.commit({"README.md": "# Better\n", "new.md": "New.\n", "logo.png": None})
    look_again(work)
    second = remote.commit({"new.md": None})
    look_again(work)
    puller.pull()
    assert puller.seen[:1] == [("deleted", "logo.png")]
    assert set(puller.seen[1:3]) == {("created", "new.md"), ("updated", "README.md")}
    assert puller.seen[3:] == [("deleted", "new.md")]
    assert puller.commits[-4:] == [first] * 3 + [second]
    puller.pull()
    assert len(puller.seen) == 4


def test_a_new_mode_alone_is_no_change(
    alice_api: Api, repository_id: str, remote: HostedRepository, work: Work
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    puller.seen.clear()
    remote.commit({"README.md": executable(b"# Handbook\n")})
    look_again(work)
    puller.pull()
    assert puller.seen == []


def test_at_any_pace_and_page_size_the_pullers_end_with_the_files(
    alice_api: Api, repository_id: str, remote: HostedRepository, work: Work
) -> None:
    dice = random.Random(7)  # noqa: S311
    pullers = [Puller(alice_api, repository_id, limit=limit) for limit in (1, 2, 7)]
    for step in range(6):
        remote.commit(_random_changes(dice, step, set(remote.files())))
        look_again(work)
        for puller in pullers:
            for _ in range(dice.randint(0, 3)):
                puller.pull_page()
    for puller in pullers:
        puller.pull()
        assert puller.files == listed(alice_api, repository_id)


def _random_changes(dice: random.Random, step: int, present: set[str]) -> dict[str, str | None]:
    paths = [f"file-{dice.randint(0, 6)}" for _ in range(dice.randint(1, 5))]
    return {path: None if path in present and dice.random() < 0.4 else f"{path} at {step}" for path in paths}


def test_only_the_chosen_files_are_told_and_one_that_outgrew_its_size_can_still_be_deleted(
    alice_api: Api, remote: HostedRepository, work: Work
) -> None:
    made = alice_api.watch(remote.url, include=["*.md"], max_file_size=20).json()
    work()
    puller = Puller(alice_api, made["repository_id"])
    puller.pull()
    assert set(puller.files) == {"README.md", "docs/start.md"}
    puller.seen.clear()
    remote.commit({"README.md": "x" * 21, "docs/start.md": None, "logo.png": None})
    look_again(work)
    puller.pull()
    assert puller.seen == [("deleted", "docs/start.md")]
    remote.commit({"README.md": "short"})
    look_again(work)
    page = alice_api.get(f"{puller.path}?since={puller.cursor}").json()
    assert [(change["event"], change["previous_sha"]) for change in page["changes"]] == [("created", None)]


def test_a_file_too_large_for_everybody_is_neither_told_nor_shown_until_it_shrinks(
    alice_api: Api, repository_id: str, remote: HostedRepository, work: Work, settings: Any
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    puller.seen.clear()
    settings.MAX_FILE_BYTES = 20
    remote.commit({"README.md": "x" * 21, "huge.bin": "y" * 30})
    look_again(work)
    puller.pull()
    assert puller.seen == []
    path = f"/api/repositories/{repository_id}"
    assert set(listed(alice_api, repository_id)) == {"docs/start.md", "logo.png"}
    assert alice_api.get(f"{path}/files/README.md").status_code == 404
    left_out = alice_api.get(path).json()["left_out"]
    assert [(item["path"], item["reason"], item["size"]) for item in left_out] == [
        ("README.md", "too-large", 21),
        ("huge.bin", "too-large", 30),
    ]
    remote.commit({"huge.bin": None, "README.md": "short"})
    look_again(work)
    page = alice_api.get(f"{puller.path}?since={puller.cursor}").json()
    assert [(change["event"], change["path"], change["sha"] is None) for change in page["changes"]] == [
        ("deleted", "huge.bin", True),
        ("created", "README.md", False),
    ]


def test_a_cursor_survives_a_renewal_but_not_other_options(
    alice_api: Api, repository_id: str, remote: HostedRepository, work: Work
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    alice_api.watch(remote.url)
    work()
    assert alice_api.get(f"{puller.path}?since={puller.cursor}").json()["changes"] == []
    alice_api.watch(remote.url, include=["*.md"])
    work()
    answer = alice_api.get(f"{puller.path}?since={puller.cursor}")
    assert (answer.status_code, answer.json()["code"]) == (410, "cursor-expired")


def test_a_cursor_of_another_repository_or_older_than_the_history_is_gone(
    alice_api: Api, repository_id: str, git_host: GitHost, remote: HostedRepository, work: Work, settings: Any
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    remote.commit({"new.md": "new"})
    look_again(work)
    settings.HISTORY_DAYS = 0
    assert alice_api.get(f"{puller.path}?since={puller.cursor}").status_code == 410
    settings.HISTORY_DAYS = 30
    other = git_host.create("acme/other")
    other.commit({"a": "b"})
    path = f"/api/repositories/{alice_api.watch(other.url).json()['repository_id']}/changes"
    work()
    assert alice_api.get(f"{path}?since={puller.cursor}").status_code == 410


def test_waiting_ends_with_the_first_change(
    alice_api: Api, repository_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    monkeypatch.setattr(seats, "_PAUSE", 0.05)
    elsewhere = threading.Timer(0.3, _delete_the_readme)
    elsewhere.start()
    started = time.monotonic()
    page = alice_api.get(f"{puller.path}?since={puller.cursor}&wait=20").json()
    elsewhere.join()
    assert time.monotonic() - started < 15
    assert [(change["event"], change["path"]) for change in page["changes"]] == [("deleted", "README.md")]


def _delete_the_readme() -> None:
    """What a worker writes for a commit that deletes one file."""
    with transaction.atomic():
        repository = Repository.objects.get()
        Snapshot.objects.create(repository=repository, sequence=2, commit_sha="2" * 40, files=2, bytes=2)
        FileVersion.objects.filter(file__path="README.md").update(until=2)
        Repository.objects.update(sequence=2)
    connection.close()


def test_waiting_in_vain_ends_in_time_and_too_many_do_not_wait_at_all(
    alice_api: Api, repository_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    started = time.monotonic()
    assert alice_api.get(f"{puller.path}?since={puller.cursor}&wait=1").json()["changes"] == []
    assert time.monotonic() - started >= 1
    monkeypatch.setattr(seats, "_seats_for_waiting", threading.Semaphore(0))
    started = time.monotonic()
    assert alice_api.get(f"{puller.path}?since={puller.cursor}&wait=30").status_code == 200
    assert time.monotonic() - started < 15
    assert alice_api.get(f"{puller.path}?wait=31").status_code == 422


def test_an_unwatched_repository_ends_the_wait_with_404(
    alice_api: Api, repository_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    puller = Puller(alice_api, repository_id)
    puller.pull()
    monkeypatch.setattr(seats, "_PAUSE", 0.05)
    leave = threading.Timer(0.3, _delete_the_repository)
    leave.start()
    assert alice_api.get(f"{puller.path}?since={puller.cursor}&wait=20").status_code == 404
    leave.join()


def _delete_the_repository() -> None:
    Watch.objects.all().delete()
    Repository.objects.update(sequence=9)
    connection.close()
