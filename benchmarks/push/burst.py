"""500 hooks spread over one second for 50 repositories: how soon each is answered, how many looks, what arrives."""

import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.path.bench import Bench
from benchmarks.path.remote import Remote
from benchmarks.path.report import Outcome
from benchmarks.path.stage import Stage, Wrong
from benchmarks.push.pushes import Hook

_SECONDS = 1.0
_SENDERS = 32
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
        took = _send_all(doors, commits, hooks)
        for watch, prepared in zip(watches, commits, strict=True):
            stage.told(watch, prepared[-1], paths=1, seconds=bench.patience)
        time.sleep(_SETTLED)
        most, in_all = _count_looks(stage, since)
    ordered = sorted(took)
    detail = (
        f"{len(took)} hooks, answered in p50 {1000 * ordered[len(ordered) // 2]:.0f} ms,"
        f" worst {1000 * ordered[-1]:.0f} ms; {in_all} looks at {repositories} repositories, at most {most} each;"
        " the last commit of each was delivered"
    )
    return _Burst(ordered[-1], most, detail)


def _prepared(remote: Remote, count: int) -> list[str]:
    """Commits to point to later: a push in the burst must cost nothing but its ref."""
    before = remote.tip
    made = [remote.commit({"pushed.md": b"%d\n" % number}) for number in range(count)]
    remote.point_to(before)
    return made


def _send_all(doors: list[Hook], commits: list[list[str]], hooks: int) -> list[float]:
    guards, newest = [threading.Lock() for _ in doors], [0] * len(doors)
    address = urlsplit(doors[0].url)
    requests = [[door.request(commit) for commit in made] for door, made in zip(doors, commits, strict=True)]
    began = time.monotonic()

    def send(number: int) -> float:
        which, turn = number % len(doors), number // len(doors)
        time.sleep(max(0.0, began + number * _SECONDS / hooks - time.monotonic()))
        with guards[which]:  # a thread that comes late does not undo a later push
            newest[which] = max(newest[which], turn)
            ref = doors[which].watch.remote.path / "refs" / "heads" / "main"
            ref.write_text(f"{commits[which][newest[which]]}\n")
        started = time.monotonic()
        with socket.create_connection((address.hostname or "", address.port or 80), timeout=30) as connection:
            connection.sendall(requests[which][turn])
            answer = connection.recv(1024)
        if not answer.startswith(b"HTTP/1.1 2"):
            raise Wrong(f"a hook was answered with {answer[:40]!r}")
        return time.monotonic() - started

    with ThreadPoolExecutor(_SENDERS) as pool:
        return list(pool.map(send, range(len(doors) * (hooks // len(doors)))))


def _count_looks(stage: Stage, since: float) -> tuple[int, int]:
    """A look asks the host for its refs once; a fetch asks for a commit by its name."""
    found = Counter(name for name, kind, _ in stage.git_requests(since) if kind == "ls-refs")
    return max(found.values(), default=0), found.total()
