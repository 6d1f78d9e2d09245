"""Looks without a process: one HTTP question each, to many hosts and repositories at the same time.

They decide one thing: nothing has changed. Every other answer becomes the job that looks with git, and so does every
repository for which even an unchanged look has something to do: see `_may_be_asked`.

No thread of its own: questions move on while `work` runs the event loop, and stand still while it uses the database.
"""

import asyncio
import logging
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Self

from django.conf import settings
from django.db import Error as DatabaseProblem
from django.db import transaction
from django.db.models import Prefetch, prefetch_related_objects
from django.utils import timezone

from repositories import access, github_app, hints, timing, watch_state
from repositories.base import counters, queue
from repositories.base.outgoing import PausingLoop
from repositories.errors import InvalidUrl
from repositories.git.clones import Remote
from repositories.git.ls_refs import Answer, Host
from repositories.models import Repository, Watch, WatchStatus
from repositories.watches import notice_change, request_snapshot
from snapshots import manifest

log = logging.getLogger("docora.looks")

# The most that are claimed in one transaction; and answers are written as soon as there are this many.
_BATCH = 200
# A host with more looks in line gets no further ones: others are claimed, and memory stays bounded.
_LONGEST_LINE = 100
# Seconds after which answers are written, also when there are few.
_WRITE_INTERVAL = 0.5


@dataclass(eq=False, slots=True, kw_only=True)
class _Look:
    repository: Repository
    remote: Remote
    watches: list[Watch]
    """The watches whose token is used."""
    asked_at: datetime | None = None
    seconds: float = 0.0
    """How long the remote took to answer; 0 if it was not asked, because its host wants to be left alone."""


@dataclass(eq=False, slots=True)
class _Line:
    """The looks at one host that wait for their turn."""

    waiting: deque[_Look] = field(default_factory=deque)
    lanes: set["asyncio.Task[None]"] = field(default_factory=set)
    host: Host | None = None


class Looks:
    """`with Looks() as looks:`, then `claim` what is due and `work`."""

    def __init__(self) -> None:
        self._loop = PausingLoop()
        self._lines: dict[str, _Line] = {}
        self._in_hand: set[_Look] = set()
        self._answered: list[tuple[_Look, Answer]] = []
        self._more_is_due = False

    def __enter__(self) -> Self:
        self._enough = asyncio.Event()
        return self

    def __exit__(self, *_: object) -> None:
        """What has no answer yet is due again at once, for another scheduler or the next one here."""
        self._loop.run(self._close())
        self._loop.close()
        now = timezone.now()
        with suppress(DatabaseProblem):
            timing.plan_claimed_looks({look.repository: now for look in self._in_hand})

    def claim(self) -> int:
        """Take what is due. What may be asked stands in line, the rest becomes jobs; returns how many."""
        now, jobs = timezone.now(), 0
        self._more_is_due = True
        while (room := settings.SCAN_BACKLOG - queue.length(queue.SNAPSHOTS) - len(self._in_hand)) > 0:
            crowded = [base for base, line in self._lines.items() if len(line.waiting) >= _LONGEST_LINE]
            claimed = timing.claim_due_looks(now, min(room, _BATCH), except_bases=crowded)
            jobs += self._distribute(claimed)
            if len(claimed) < min(room, _BATCH):
                self._more_is_due = bool(crowded)
                break
        return jobs

    def work(self, seconds: float, *, until_answered: bool = False) -> int:
        """Ask for that many seconds and write the answers; returns how many looks became jobs."""
        jobs, deadline = 0, time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and (self._in_hand or not until_answered):
            self._loop.run(self._ask(min(left, _WRITE_INTERVAL) if self._in_hand else left))
            jobs += self._write_answers()
            if self._more_is_due:
                jobs += self.claim()
        return jobs

    def _distribute(self, claimed: list[Repository]) -> int:
        """Into the lines of their hosts, to a later time if the host rests, or to the workers."""
        watches = Prefetch("watches", queryset=access.best_proven_first(Watch.objects.all()))
        prefetch_related_objects(claimed, watches)
        rests: dict[str, float] = {}
        resting: dict[Repository, datetime] = {}
        jobs = 0
        for repository in claimed:
            look = _look_at(repository)
            base = _host_of(repository)
            if base not in rests:
                rests[base] = timing.seconds_of_host_rest(base)
            if rests[base]:
                resting[repository] = timing.after_rest(rests[base])
            elif look and _may_be_asked(repository):
                self._in_hand.add(look)
                self._lines.setdefault(base, _Line()).waiting.append(look)
            else:
                request_snapshot(repository, planned=True)
                jobs += 1
        timing.plan_claimed_looks(resting)
        return jobs

    def _write_answers(self) -> int:
        """Returns how many looks became jobs."""
        answered, self._answered = self._answered, []
        self._in_hand.difference_update(look for look, _ in answered)
        _note_unchanged([look for look, answer in answered if answer.is_unchanged])
        _put_off({look: answer.rest for look, answer in answered if answer.rest})
        differing = [(look, answer) for look, answer in answered if not answer.is_unchanged and not answer.rest]
        for look, answer in differing:
            if answer.is_changed:
                notice_change(look.repository.pk)
            request_snapshot(look.repository, planned=True)
        with counters.one_run() as counts:
            for outcome, seconds in [(_outcome(answer), look.seconds) for look, answer in answered if look.seconds]:
                counts.add(counters.LOOKS, "http", outcome)
                counts.observe(counters.LOOK_SECONDS, seconds, "http")
        return len(differing)

    async def _ask(self, seconds: float) -> None:
        """Run until all is answered, there is enough to be written, or the time is over."""
        self._enough.clear()
        for line in self._lines.values():
            for _ in range(min(len(line.waiting), settings.LOOKS_PER_HOST - len(line.lanes))):
                lane = self._loop.create_task(self._ask_in_turn(line))
                line.lanes.add(lane)
                lane.add_done_callback(line.lanes.discard)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._enough.wait(), seconds)

    async def _ask_in_turn(self, line: _Line) -> None:
        while line.waiting:
            look = line.waiting.popleft()
            if look.repository.next_check_at > timezone.now():
                await self._ask_about(look, line)
            else:  # the claim has ended in line, and another scheduler may have it by now
                self._in_hand.discard(look)
            if len(self._answered) >= min(_BATCH, len(self._in_hand)):
                self._enough.set()

    async def _ask_about(self, look: _Look, line: _Line) -> None:
        try:
            line.host = line.host or Host(look.remote.url)
        except OSError as error:  # the file of the authorities is missing or no certificate
            log.warning("%s cannot be asked over HTTP: %s", look.remote.url.base, error)
            self._answered.append((look, Answer()))
            return
        asked, look.asked_at = self._loop.time(), timezone.now()
        repository = look.repository
        answer = await line.host.ask(look.remote, repository.ref, known=repository.commit_sha, branch=repository.branch)
        look.seconds = self._loop.time() - asked
        self._answered.append((look, answer))
        if answer.rest:
            self._answered += [(waiting, answer) for waiting in line.waiting]
            line.waiting.clear()

    async def _close(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for line in self._lines.values():
            if line.host:
                await line.host.close()


def _look_at(repository: Repository) -> _Look | None:
    """None if nobody watches it any more, its host may not be watched, or a token of the GitHub App is to be made."""
    with suppress(InvalidUrl):
        for credential, watches in access.by_credential(repository, repository.watches.all()).items():
            url = repository.remote
            token = github_app.kept_token(url) if credential.is_granted else credential.token
            if token is not None:
                return _Look(repository=repository, remote=Remote(url=url, token=token), watches=watches)
    return None


def _host_of(repository: Repository) -> str:
    """By which its rests are kept; empty if the operator has taken it off the list."""
    try:
        return repository.remote.base
    except InvalidUrl:
        return ""


def _outcome(answer: Answer) -> str:
    if answer.is_unchanged:
        return "unchanged"
    return "put-off" if answer.rest else "passed-on"


def _may_be_asked(repository: Repository) -> bool:
    """Whether an unchanged look would do nothing but note times.

    For others it closes the circuit, asks refused tokens again, settles watches or requests deliveries: with git.
    """
    is_healthy = not (
        repository.circuit_open_until
        or repository.consecutive_failures
        or repository.last_error
        or repository.needs_repair
    )
    return is_healthy and bool(repository.commit_sha) and all(map(_lacks_nothing, repository.watches.all()))


def _lacks_nothing(watch: Watch) -> bool:
    is_behind = watch_state.is_behind(watch, watch.repository.sequence)
    return not is_behind and watch.status == WatchStatus.SYNCED and watch.access_denied_at is None


def _note_unchanged(looks: list[_Look]) -> None:
    """Times and proofs, in one transaction. A proof is not younger than its question."""
    if not looks:
        return
    changes = manifest.last_changes(look.repository for look in looks)
    hooked = hints.hooked(changes)
    now = timezone.now()
    plans = {
        look.repository: timing.next_look(
            now, last_change=changes[look.repository.pk], hooked=look.repository.pk in hooked
        )
        for look in looks
    }
    with transaction.atomic():
        timing.plan_claimed_looks(plans, checked_at=now)
        asked_at = min(look.asked_at or now for look in looks)
        access.note_proofs([watch for look in looks for watch in look.watches], at=asked_at)


def _put_off(looks: dict[_Look, float]) -> None:
    """Their hosts do not want to be asked for that many seconds."""
    rests: dict[str, float] = {}
    for look, seconds in looks.items():
        base = look.remote.url.base
        rests[base] = max(seconds, rests.get(base, 0))
    for base, seconds in rests.items():
        timing.rest_host(base, seconds)
        log.warning("%s answered 429 or Retry-After: no planned looks at it for %.0f s", base, seconds)
    timing.plan_claimed_looks({look.repository: timing.after_rest(rest) for look, rest in looks.items()})
