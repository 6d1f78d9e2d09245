"""Hours of pushes, force pushes and hooks that get lost, on a clock that the test moves: the net catches what falls."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest
from django.utils import timezone
from pytest_django import Settings

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories import hints, hooks
from repositories.base import queue
from repositories.models import Repository, Watch
from snapshots import schedule
from snapshots.delivery import endpoint
from tests.support.git_hooks import ZERO, github, gitlab
from tests.support.worker import Work

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]

HOURS = 2
STEP = 30.0  # seconds
TICK = 60.0
RESCAN = 300.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> "Clock":
    clock = Clock(timezone.now())
    monkeypatch.setattr(timezone, "now", lambda: clock.now)
    return clock


@dataclass
class Clock:
    now: datetime

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@dataclass
class Pusher:
    """Pushes at random, and sends a hook for each push that arrives, is lost, comes late, twice, or tells lies."""

    remote: HostedRepository
    url: str
    secret: str
    chance: random.Random
    pushes: int = 0
    lost: int = 0
    late: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)

    def push(self) -> None:
        self.pushes += 1
        kind = self.chance.choice(["commit", "commit", "commit", "rewrite", "back", "elsewhere"])
        files = {f"page-{self.chance.randrange(8)}.md": f"{self.pushes}\n"}
        if kind == "commit":
            self.commits.append(self.remote.commit(files))
        elif kind == "rewrite":
            self.commits.append(self.remote.rewrite(files))
        elif kind == "back":
            self.remote.point("main", self.chance.choice(self.commits))
        else:
            self.remote.commit(files, branch="elsewhere")
        self.files = self.remote.files()

    def send_hook(self) -> bool:
        """Whether a hook has arrived that tells of the newest commit."""
        fate = self.chance.choice(["arrives", "arrives", "twice", "lost", "lost", "late", "lies"])
        if fate == "lost":
            self.lost += 1
            return False
        if fate == "late":
            self.late.append("refs/heads/main")
            return False
        if fate == "lies":
            self._post("refs/heads/elsewhere")
            self._post("refs/heads/main", after=ZERO)
            return False
        for _ in range(2 if fate == "twice" else 1):
            self._post("refs/heads/main", after="f" * 40)
        return True

    def send_late_ones(self) -> bool:
        for ref in self.late:
            self._post(ref)
        arrived, self.late = bool(self.late), []
        return arrived

    def _post(self, ref: str, **facts: str) -> None:
        send = self.chance.choice([github, gitlab])
        assert send(self.secret, "acme/handbook", ref, **facts).to(self.url).status_code in {202, 204}


@pytest.fixture
def pusher(watch: Watch, remote: HostedRepository) -> Pusher:
    hook, secret = hooks.open_for(watch)
    tip = remote.tip()
    assert tip
    return Pusher(remote, f"/hooks/{hook.public_id}", secret, random.Random(7), files=remote.files(), commits=[tip])  # noqa: S311


def moments(clock: Clock) -> Iterator[bool]:
    """Each step of the hours; True where the scheduler ticks."""
    since_tick = 0.0
    for _ in range(round(HOURS * 3600 / STEP)):
        clock.move(STEP)
        since_tick += STEP
        yield since_tick >= TICK
        since_tick = 0.0 if since_tick >= TICK else since_tick


@pytest.mark.parametrize("hooked_interval", [0, 1800])
def test_the_app_has_the_newest_commit_at_once_by_a_hook_and_in_time_by_the_net(
    clock: Clock,
    pusher: Pusher,
    watch: Watch,
    alice: Receiver,
    work: Work,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    hooked_interval: float,
) -> None:
    settings.HOOKED_RESCAN_INTERVAL = hooked_interval
    # A receiver that a busy machine delays for a second would be sent the message again, in another lane.
    monkeypatch.setattr(endpoint, "_URGENT_TIMEOUT", settings.SLOW_AFTER)
    monkeypatch.setattr(hints, "INTERVAL", 0.001)
    queue.connection().set("docora:last-reconciled", "now")
    repository = Repository.objects.get()
    stale_since: datetime | None = None
    caught_by_the_net = 0
    for ticks in moments(clock):
        arrived = pusher.send_late_ones() if pusher.chance.random() < 0.2 else False
        if pusher.chance.random() < 0.15:
            pusher.push()
            arrived |= pusher.send_hook()
        if ticks:
            schedule.tick()
        if any(map(queue.length, queue.ALL)):
            work()
        is_up_to_date = alice.files_of(repository.public_id) == pusher.files
        assert is_up_to_date or not arrived, "a hook arrived, and the newest commit is not there"
        caught_by_the_net += bool(stale_since and is_up_to_date and not arrived)
        stale_since = None if is_up_to_date else stale_since or clock.now
        longest = max(RESCAN, hooked_interval) + TICK + STEP
        assert stale_since is None or (clock.now - stale_since).total_seconds() <= longest
    assert alice.problems == []
    assert pusher.pushes > 25
    assert pusher.lost > 5
    assert caught_by_the_net > (0 if hooked_interval else 3)
