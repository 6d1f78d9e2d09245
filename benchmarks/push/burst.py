"""500 hooks spread over one second for 50 repositories: how soon each is answered, how many looks, what arrives."""

import selectors
import socket
import time
from collections import Counter
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from benchmarks.path import usage
from benchmarks.path.bench import Bench
from benchmarks.path.remote import Remote
from benchmarks.path.report import Outcome
from benchmarks.path.stage import Stage, Wrong
from benchmarks.push.pushes import Hook

_SECONDS = 1.0
_PATIENCE = 30.0
# Looks that hooks have asked for are over by then.
_SETTLED = 5.0


@dataclass(frozen=True, slots=True)
class _Burst:
    slowest_answer: float
    most_looks: int
    detail: str


def answers(bench: Bench, *, repositories: int, hooks: int) -> Outcome:
    burst = bench.once("burst", lambda: _measure(bench, repositories, hooks))
    return Outcome(ours=1000 * burst.slowest_answer, unit="ms", detail=burst.detail)


def looks(bench: Bench, *, repositories: int, hooks: int) -> Outcome:
    burst = bench.once("burst", lambda: _measure(bench, repositories, hooks))
    return Outcome(ours=burst.most_looks, unit="looks", detail=burst.detail)


def _measure(bench: Bench, repositories: int, hooks: int) -> _Burst:
    with bench.stage() as stage:
        app = stage.onboard("reader")
        watches = []
        for number in range(repositories):
            remote = stage.create(f"bench/burst-{number}", [("README.md", b"%d\n" % number)])
            watches.append(stage.watch(app, remote))
        for watch in watches:
            stage.wait_until_synced(watch, watch.remote.tip)
        doors = [Hook.of(stage, watch) for watch in watches]
        commits = [_prepared(watch.remote, hooks // repositories) for watch in watches]
        since = time.monotonic()
        with stage.unobserved():
            before = usage.processor_ticks()
            took = _send_all(doors, commits, hooks)
            ticks = usage.processor_ticks() - before
        for watch, prepared in zip(watches, commits, strict=True):
            stage.told(watch, prepared[-1], paths=1, seconds=bench.patience)
        time.sleep(_SETTLED)
        most, in_all = _count_looks(stage, since)
    ordered = sorted(took)
    detail = (
        f"{len(took)} hooks, answered in p50 {1000 * ordered[len(ordered) // 2]:.0f} ms,"
        f" worst {1000 * ordered[-1]:.0f} ms; {in_all} looks at {repositories} repositories, at most {most} each;"
        " the last commit of each was delivered;"
        f" of the processors, {ticks['steal'] / ticks.total():.0%} went to other machines on the same host"
    )
    return _Burst(ordered[-1], most, detail)


def _prepared(remote: Remote, count: int) -> list[str]:
    """Commits to point to later: a push in the burst must cost nothing but its ref."""
    before = remote.tip
    made = [remote.commit({"pushed.md": b"%d\n" % number}) for number in range(count)]
    remote.point_to(before)
    return made


def _send_all(doors: list[Hook], commits: list[list[str]], hooks: int) -> list[float]:
    """In one thread without waiting, so that the sender takes next to nothing of the cores that the service needs."""
    requests = [[door.request(commit) for commit in made] for door, made in zip(doors, commits, strict=True)]
    due = [(which, turn) for turn in range(hooks // len(doors)) for which in range(len(doors))]
    took: list[float] = []
    sent = 0
    began = time.monotonic()
    with selectors.DefaultSelector() as selector:
        while len(took) < len(due):
            pause = began + sent * _SECONDS / hooks - time.monotonic() if sent < len(due) else _PATIENCE
            if pause <= 0:
                which, turn = due[sent]
                ref = doors[which].watch.remote.path / "refs" / "heads" / "main"
                ref.write_text(f"{commits[which][turn]}\n")
                started = time.monotonic()
                connection = _begin(doors[which].url, requests[which][turn])
                selector.register(connection, selectors.EVENT_READ, started)
                sent += 1
            answered = selector.select(max(0.0, pause))
            if not answered and pause == _PATIENCE:
                raise Wrong(f"{sent - len(took)} hooks were not answered in {_PATIENCE:g} s")
            for key, _ in answered:
                selector.unregister(key.fileobj)
                took.append(_end(cast(socket.socket, key.fileobj), began=key.data))
    return took


def _begin(url: str, request: bytes) -> socket.socket:
    address = urlsplit(url)
    connection = socket.socket()
    connection.connect((address.hostname or "", address.port or 80))
    connection.sendall(request)
    return connection


def _end(connection: socket.socket, *, began: float) -> float:
    took = time.monotonic() - began
    with connection:
        answer = connection.recv(1024)
    if not answer.startswith(b"HTTP/1.1 2"):
        raise Wrong(f"a hook was answered with {answer[:40]!r}")
    return took


def _count_looks(stage: Stage, since: float) -> tuple[int, int]:
    """A look asks the host for its refs once; a fetch asks for a commit by its name."""
    found = Counter(name for name, kind, _ in stage.git_requests(since) if kind == "ls-refs")
    return max(found.values(), default=0), found.total()
