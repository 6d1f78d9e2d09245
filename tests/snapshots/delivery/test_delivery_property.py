"""Whatever happens on the way, in the end each app has exactly what `git ls-tree` lists of the last commit.

And at every moment, the digest of a watch is that of the rows of what the app has acknowledged.

Random edits, watches that come, go, are renewed and choose other files, workers that crash before they have written
down what was answered, and receivers that fail in every way they know; then all faults are lifted and everything is
compared.
"""

import hashlib
import subprocess
from functools import partial
from itertools import count
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import watch_state, watches
from repositories.models import App, Repository, Watch, WatchStatus
from repositories.selection import EVERYTHING, Selection
from snapshots import digests, holdings
from snapshots.delivery import redelivery, run
from snapshots.models import Delivery, Parked
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


PATHS = st.sampled_from(["a.md", "b.md", "c.bin", "d/e.md", "d/f.md", "g"])
CONTENTS = st.one_of(st.none(), st.sampled_from(["", "one", "two", "ü\0"]), st.just(b"\xff" * 300))
SELECTIONS = st.sampled_from([EVERYTHING, Selection(exclude=("a.md", "c.bin")), Selection(include=("d/", "b.md"))])
FAULTS = st.sampled_from(
    [
        {"status": 500},
        {"status": 429, "headers": {"Retry-After": "0"}},
        {"status": 413},
        # Not to a delete: there it says that the file is not there, and is believed.
        {"status": 404, "events": ["create", "update"]},
        {"reset": True},
        {"status": 500, "after_applying": True},
        {"reset": True, "after_applying": True},
    ]
)


class _Crash(BaseException):
    """The worker dies: what it knows and has not committed is lost."""


class Story(RuleBasedStateMachine):
    apps = Bundle("apps")
    numbers = count()

    def __init__(self, git_host: GitHost, cast: dict[str, tuple[App, Receiver]], work: Work) -> None:
        super().__init__()
        self.git_host, self.cast, self.work = git_host, cast, work

    @initialize()
    def begin(self) -> None:
        self.remote: HostedRepository = self.git_host.create(f"acme/story-{next(self.numbers)}")
        self.remote.commit({"README.md": "once upon a time"})
        for _, receiver in self.cast.values():
            receiver.requests.clear()
            receiver.mirror.repeats_are_allowed = True

    @rule(changes=st.dictionaries(PATHS, CONTENTS, min_size=1, max_size=4))
    def edit(self, changes: dict[str, str | bytes | None]) -> None:
        known = self.remote.files()
        self.remote.commit({path: content for path, content in changes.items() if content is not None or path in known})

    @rule(name=st.sampled_from(["alice", "bob"]), lanes=st.sampled_from([1, 2, 8]))
    def watch(self, name: str, lanes: int) -> None:
        app, receiver = self.cast[name]
        App.objects.filter(pk=app.pk).update(max_in_flight=lanes)
        receiver.mirror.files.clear()
        watches.watch(app, self.remote.url)

    @precondition(lambda self: Watch.objects.exists())
    @rule(name=st.sampled_from(["alice", "bob"]))
    def unwatch(self, name: str) -> None:
        watch = Watch.objects.filter(app=self.cast[name][0]).select_related("repository").first()
        if watch:
            watches.unwatch(self.cast[name][0], watch.repository.public_id)

    @rule(name=st.sampled_from(["alice", "bob"]), fault=FAULTS, path=st.none() | PATHS, times=st.integers(1, 3))
    def break_receiver(self, name: str, fault: dict[str, object], path: str | None, times: int) -> None:
        self.cast[name][1].faults.put(ReceiverFault(path=path, times=times, **fault))  # type: ignore[arg-type]

    @rule()
    def look_and_deliver(self) -> None:
        for repository in Repository.objects.all():
            watches.request_snapshot(repository)
        self.work(also_later_ones=True)

    @rule(after=st.integers(0, 2), committed=st.booleans())
    def crash(self, after: int, committed: bool) -> None:
        """The worker dies at one of its commits, just before or just after it."""
        calls, record = count(), run.Run._record

        def die(self: run.Run) -> None:
            dies_now = next(calls) >= after
            if committed or not dies_now:
                record(self)
            if dies_now:
                raise _Crash

        with patch.object(run.Run, "_record", die):
            try:
                self.look_and_deliver()
            except _Crash:
                return

    @precondition(lambda self: Watch.objects.exists())
    @rule(selection=SELECTIONS)
    def choose(self, selection: Selection) -> None:
        watch = Watch.objects.last()
        assert watch
        watch_state.choose(watch, selection)

    @precondition(lambda self: Watch.objects.exists())
    @rule()
    def resync(self) -> None:
        watch = Watch.objects.first()
        assert watch
        redelivery.resync(watch)

    @rule(event=st.sampled_from(["create", "update", "delete"]))
    def redeliver(self, event: str) -> None:
        redelivery.redeliver_many(Delivery.objects.filter(event=event).order_by("-pk")[:5])

    @precondition(lambda self: Parked.objects.exists())
    @rule()
    def retry_parked(self) -> None:
        for watch in Watch.objects.all():
            redelivery.retry_parked(watch)

    @invariant()
    def the_digest_is_that_of_the_rows(self) -> None:
        for watch in Watch.objects.all():
            assert holdings.recorded(watch) == holdings.counted(watch)

    def teardown(self) -> None:
        try:
            self._compare()
        finally:
            # Also after a failure: the next story begins with nothing of this one.
            for watch in Watch.objects.select_related("app", "repository"):
                watches.unwatch(watch.app, watch.repository.public_id)
            self.work(also_later_ones=True)
        assert not Repository.objects.exists()

    def _compare(self) -> None:
        for _, receiver in self.cast.values():
            receiver.faults.lift_all()
        self._deliver_all()
        for app, receiver in self.cast.values():
            for watch in Watch.objects.filter(app=app).select_related("repository"):
                files = receiver.files.get(watch.repository.public_id, {})
                assert files == listed(self.remote, watch.selection)
                assert holdings.recorded(watch) == digests.of_files(
                    (path.encode(), hashlib.sha256(content).digest()) for path, content in files.items()
                )

    def _deliver_all(self) -> None:
        for _ in range(10):
            for watch in Watch.objects.all():
                redelivery.retry_parked(watch)
            self.look_and_deliver()
            if not Watch.objects.exclude(status=WatchStatus.SYNCED).exists():
                return
        raise AssertionError([watch.last_error for watch in Watch.objects.all()])


def listed(remote: HostedRepository, selection: Selection) -> dict[str, bytes]:
    """By git itself, beside everything that Docora and its cast know of the repository."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", str(remote.path), *words], capture_output=True, check=True).stdout

    entries = git("ls-tree", "-r", "-z", "--full-tree", "HEAD").split(b"\0")[:-1]
    return {
        path.decode(): git("cat-file", "blob", facts.split()[2].decode())
        for facts, path in (entry.split(b"\t") for entry in entries)
        if selection.takes_path(path.decode())
    }


def test_in_the_end_every_app_has_the_last_commit(
    alice_app: App, bob_app: App, alice: Receiver, bob: Receiver, git_host: GitHost, work: Work
) -> None:
    cast = {"alice": (alice_app, alice), "bob": (bob_app, bob)}
    run_state_machine_as_test(
        partial(Story, git_host, cast, work),  # type: ignore[arg-type]
        settings=settings(
            max_examples=12, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
