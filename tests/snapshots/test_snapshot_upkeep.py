"""Reconcile, history and the commands: disk, rows and refs as the watches need them."""

import os
import subprocess
import time
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import GitFault, GitHost, HostedRepository
from docora.demo.receiver import Receiver
from repositories import access, accounts, watches
from repositories.git import clones
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.repo_lock import repo_lock
from snapshots import history, holdings, look, manifest, reconcile
from snapshots.models import File, FileVersion, Snapshot
from tests.support.pins import age_pins
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


def command(*words: str) -> str:
    output = StringIO()
    call_command(*words, stdout=output)
    return output.getvalue()


def commit_and_sync(remote: HostedRepository, work: Work, content: str) -> None:
    remote.commit({"README.md": content})
    watches.request_snapshot(Repository.objects.get())
    work()


class TestReconcile:
    def test_all_is_well_after_a_sync(self, watch: Watch) -> None:
        assert "as it should be" in command("reconcile")

    def test_it_only_tells_unless_it_may(self, watch: Watch, settings: Settings) -> None:
        stranger = settings.REPOS_BASE_PATH / "nobody" / "watches"
        stranger.mkdir(parents=True)
        assert "nobody/watches: nobody watches this clone" in command("reconcile")
        assert stranger.exists()
        assert "1 of 1 repaired" in command("reconcile", "--apply")
        assert not stranger.parent.exists()

    def test_a_clone_in_use_is_left_to_the_next_round(self, watch: Watch, settings: Settings) -> None:
        settings.REPO_LOCK_WAIT = 0
        stranger = settings.REPOS_BASE_PATH / "nobody" / "watches"
        stranger.mkdir(parents=True)
        with repo_lock("nobody/watches", job_id="somebody"):
            assert reconcile.run(job_id="test") == 0
        assert stranger.exists()

    def test_trash_and_drafts_of_killed_workers_go(self, watch: Watch, settings: Settings) -> None:
        old, fresh = (clones._aside("drafts", name) for name in ("old", "fresh"))
        for draft in (old, fresh):
            draft.mkdir()
        os.utime(old, (0, 0))
        assert reconcile.run(job_id="test") == 1
        assert (old.exists(), fresh.exists()) == (False, True)

    def test_a_clone_that_is_gone_is_made_anew_for_who_needs_it(
        self, watch: Watch, bob_app: App, bob: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        clones.empty(clones.path_of(watch.repository.clone_key))
        assert "as it should be" in command("reconcile"), "everybody has everything: the next change brings it"
        watches.watch(bob_app, remote.url)
        work()
        assert bob.files[watch.repository.public_id] == remote.files()
        assert clones.path_of(watch.repository.clone_key).exists()

    def test_pins_stay_while_a_delivery_may_read_them_and_go_then(
        self, watch: Watch, remote: HostedRepository, work: Work
    ) -> None:
        first = remote.tip()
        commit_and_sync(remote, work, "second")
        assert clones.pins(watch.repository.clone_key) == {first, remote.tip()}
        assert reconcile.run(job_id="test") == 0
        Snapshot.objects.update(taken_at=timezone.now() - timedelta(hours=7))
        age_pins(watch.repository.clone_key)
        assert reconcile.run(job_id="test") == 1
        assert clones.pins(watch.repository.clone_key) == {remote.tip()}
        commit_and_sync(remote, work, "third")
        assert str(remote.tip()) in clones.pins(watch.repository.clone_key)

    def test_a_commit_stays_pinned_while_its_snapshot_is_being_written(
        self, watch: Watch, remote: HostedRepository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lock is free then, and no row names the commit yet."""
        key, write = watch.repository.clone_key, manifest.write

        def write_later(*args: Any, **kwargs: Any) -> bool:
            assert reconcile.run(job_id="meanwhile") == 0
            assert str(remote.tip()) in clones.pins(key)
            return write(*args, **kwargs)

        monkeypatch.setattr(manifest, "write", write_later)
        Snapshot.objects.update(taken_at=timezone.now() - timedelta(hours=7))
        remote.commit({"README.md": "second"})
        look.take_snapshot(watch.repository_id, job_id="look")
        assert Repository.objects.get().commit_sha == remote.tip()

    def test_the_commit_that_was_the_newest_until_lately_stays_pinned(
        self, watch: Watch, remote: HostedRepository, work: Work
    ) -> None:
        """A delivery that began before the change may still be reading it."""
        pinned = {remote.tip()}
        commit_and_sync(remote, work, "second")
        pinned.add(remote.tip())
        Snapshot.objects.filter(sequence=1).update(taken_at=timezone.now() - timedelta(days=7))
        assert reconcile.run(job_id="test") == 0
        assert clones.pins(watch.repository.clone_key) == pinned

    @pytest.mark.parametrize("first", ["", "old"])
    def test_the_commits_of_every_ref_of_a_clone_stay_pinned(
        self, alice_app: App, remote: HostedRepository, work: Work, first: str
    ) -> None:
        pinned = {remote.tip()}
        remote.point("old", str(remote.tip()))
        pinned.add(remote.commit({"README.md": "second"}))
        for ref in (first, "old" if not first else ""):
            key = watches.watch(alice_app, remote.url, ref=ref).repository.clone_key
        work()
        Snapshot.objects.update(taken_at=timezone.now() - timedelta(days=7))
        assert reconcile.run(job_id="test") == 0
        assert clones.pins(key) == pinned

    def test_a_clone_that_is_needed_is_not_found_to_be_too_much(self, watch: Watch, settings: Settings) -> None:
        settings.DISK_QUOTA_BYTES = 1
        Watch.objects.update(asked_again=True)
        assert list(reconcile.findings()) == []

    def test_beyond_the_quota_the_clone_out_of_use_for_longest_goes_and_comes_back(
        self, watch: Watch, alice: Receiver, alice_app: App, git_host: GitHost, remote: HostedRepository,
        work: Work, settings: Settings,
    ) -> None:  # fmt: skip
        other = git_host.create("acme/other")
        other.commit({"a.md": "a"})
        newer = watches.watch(alice_app, other.url).repository
        work()
        os.utime(clones.path_of(watch.repository.clone_key), (0, time.time() - 3600))
        settings.DISK_QUOTA_BYTES = clones.usage(newer.clone_key).bytes + 1
        assert reconcile.run(job_id="test") == 1
        assert clones.keys_on_disk() == [newer.clone_key]
        remote.commit({"more.md": "more"})
        watches.request_snapshot(watch.repository)
        work()
        assert alice.files[watch.repository.public_id] == remote.files()
        assert alice.problems == []

    def test_a_clone_that_is_needed_again_meanwhile_stays(self, watch: Watch, settings: Settings) -> None:
        """It was found to be too much, but is looked at again under its lock."""
        settings.DISK_QUOTA_BYTES = 1
        (finding,) = reconcile.findings()
        Repository.objects.update(needs_repair=True)
        reconcile.apply(finding, job_id="test")
        assert clones.keys_on_disk() == [watch.repository.clone_key]

    def test_a_damaged_clone_does_not_stop_the_round(self, watch: Watch, settings: Settings) -> None:
        (clones.path_of(watch.repository.clone_key) / "HEAD").unlink()
        (settings.REPOS_BASE_PATH / "nobody" / "watches").mkdir(parents=True)
        assert reconcile.run(job_id="test") == 1


class TestHistory:
    def test_what_no_app_needs_is_forgotten_after_its_days(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        remote.commit({"logo.png": None})
        for content in ("two", "three", "four"):
            commit_and_sync(remote, work, content)
        repository = Repository.objects.get()
        Snapshot.objects.filter(sequence__lte=3).update(taken_at=timezone.now() - timedelta(days=31))
        assert history.oldest_kept(repository) == 3
        history.prune(repository)
        assert sorted(Snapshot.objects.values_list("sequence", flat=True)) == [3, 4]
        assert not FileVersion.objects.filter(until__lte=3).exists()
        assert not File.objects.filter(path="logo.png").exists()
        assert manifest.at(repository.pk, 3).count() == manifest.at(repository.pk, 4).count() == 2

    def test_an_app_that_took_nothing_for_longer_keeps_no_history_and_is_told_what_differs(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        accounts.disable_app(watch.app, "The endpoint answered 410 Gone.")
        told = len(alice.requests)
        remote.commit({"passing.md": "It comes and goes meanwhile.\n", "logo.png": None})
        for content in ("two", "three", "four"):
            commit_and_sync(remote, work, content)
        remote.commit({"passing.md": None, "new.md": "New.\n"})
        commit_and_sync(remote, work, "five")
        Snapshot.objects.update(taken_at=timezone.now() - timedelta(days=31))
        assert reconcile.run(job_id="test") > 0
        assert Snapshot.objects.count() == 1
        assert FileVersion.objects.filter(until__isnull=False).count() == 0
        assert reconcile.run(job_id="test") == 0

        accounts.enable_app(watch.app)
        work()
        assert alice.files[watch.repository.public_id] == remote.files()
        assert sorted((request.event, request.path) for request in alice.requests[told:]) == [
            ("create", "new.md"),
            ("delete", "logo.png"),
            ("update", "README.md"),
        ]
        watch.refresh_from_db()
        assert (watch.status, watch.synced_sequence) == (WatchStatus.SYNCED, 5)
        assert holdings.recorded(watch) == holdings.counted(watch)

    def test_a_delivery_that_counts_on_what_is_forgotten_is_not_complete(
        self, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It has read which snapshot the app has, then the history goes: it finds no deletion any more."""
        accounts.disable_app(watch.app, "The endpoint answered 410 Gone.")
        remote.commit({"logo.png": None})
        commit_and_sync(remote, work, "# Handbook\n")
        Snapshot.objects.update(taken_at=timezone.now() - timedelta(days=31))
        proven = access.prove

        def prove_late(watch: Watch) -> None:
            proven(watch)
            history.prune(Repository.objects.get())

        monkeypatch.setattr(access, "prove", prove_late)
        accounts.enable_app(watch.app)
        work()
        assert alice.files[watch.repository.public_id] == remote.files()


class TestCommand:
    def test_it_asks_a_worker(self, watch: Watch, remote: HostedRepository, work: Work, alice: Receiver) -> None:
        remote.commit({"more.md": "more"})
        assert "Asked for" in command("snapshot", watch.repository.public_id)
        work()
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_it_waits_and_tells_what_came_of_it(
        self, watch: Watch, remote: HostedRepository, work: Work, alice: Receiver
    ) -> None:
        assert "is unchanged" in command("snapshot", remote.url, "--wait")
        remote.commit({"more.md": "more", "logo.png": None})
        assert "3 files, 1 created, 0 updated, 1 deleted." in command("snapshot", remote.url, "--wait")
        work()
        assert alice.files[watch.repository.public_id] == remote.files()

    def test_a_failure_is_a_sentence(self, watch: Watch, remote: HostedRepository, git_host: GitHost) -> None:
        with git_host.faults.put(GitFault(status=503)), pytest.raises(CommandError, match="503"):
            command("snapshot", remote.url, "--wait")
        with git_host.faults.put(GitFault(status=404)), pytest.raises(CommandError, match="No watch has a token"):
            command("snapshot", remote.url, "--wait")

    @pytest.mark.parametrize("name", ["repo_unknown", "https://example.com/a/b", "nonsense"])
    def test_a_repository_that_nobody_watches(self, name: str) -> None:
        with pytest.raises(CommandError):
            command("snapshot", name)


def test_a_read_that_finds_damage_repairs_it(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    remote.commit({"README.md": "# Better\n"})
    watches.request_snapshot(watch.repository)
    clone = clones.path_of(watch.repository.clone_key)
    for pack in clone.glob("objects/pack/*.pack"):
        pack.chmod(0o600)
        pack.write_bytes(b"\0" * pack.stat().st_size)
    work()
    for _ in range(3):
        work(also_later_ones=True)
    assert alice.files[watch.repository.public_id] == remote.files()
    assert Repository.objects.get().needs_repair is False


def test_a_clone_that_needs_a_repair_is_made_anew_although_nothing_seems_wrong_with_it(
    watch: Watch, work: Work
) -> None:
    clone = clones.path_of(watch.repository.clone_key)
    (clone / "stranger").touch()
    watches.reclone(watch.repository)
    work()
    assert clones.keys_on_disk() == [watch.repository.clone_key]
    assert not (clone / "stranger").exists()
    assert Repository.objects.get().needs_repair is False


def lose_a_content(clone: Path, name: str) -> None:
    """Git itself does not notice: the commit and its trees are there."""
    for pack in clone.glob("objects/pack/*.pack"):
        content = pack.read_bytes()
        for file in pack.parent.glob(f"{pack.stem}.*"):
            file.unlink()
        subprocess.run(["git", "unpack-objects", "-q"], cwd=clone, input=content, check=True)
    found = subprocess.run(["git", "rev-parse", name], cwd=clone, capture_output=True, text=True, check=True)
    blob = found.stdout.strip()
    (clone / "objects" / blob[:2] / blob[2:]).unlink()


def test_a_content_that_is_gone_when_the_manifest_is_written_has_the_clone_made_anew(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = clones.refresh

    def refresh_and_lose(key: str, *args: Any, **options: Any) -> None:
        monkeypatch.setattr(clones, "refresh", refresh)
        refresh(key, *args, **options)
        lose_a_content(clones.path_of(key), f"{remote.tip()}:README.md")

    monkeypatch.setattr(clones, "refresh", refresh_and_lose)
    remote.commit({"README.md": "# Better\n"})
    watches.request_snapshot(watch.repository)
    work()
    assert Repository.objects.get().needs_repair is True
    for _ in range(3):
        work(also_later_ones=True)
    assert alice.files[watch.repository.public_id] == remote.files()
    assert Repository.objects.get().needs_repair is False
