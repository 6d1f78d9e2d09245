"""One push at a time: how long from the hook to the first webhook."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks.path import usage
from benchmarks.path.bench import Bench
from benchmarks.path.remote import Remote
from benchmarks.path.report import Outcome
from benchmarks.path.stage import Stage, Watch
from docora.demo import push_hook

# Longer than the distance that Docora keeps between two looks at one repository.
_PAUSE = 1.1
_HANGING = 5
# Endpoints that have hung for so long are in the slow lane; then new ones take their place.
_HANG_SECONDS = 3.0


class Pushes:
    """Those beside which other machines took a large share of the processors are made again, as many at the most."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._all: list[float] = []
        self._undisturbed: list[float] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def are_enough(self) -> bool:
        return len(self._undisturbed) == self._wanted or len(self._all) == 2 * self._wanted

    def add(self, seconds: float, stolen: float) -> None:
        self._all.append(seconds)
        if stolen <= usage.DISTURBED:
            self._undisturbed.append(seconds)

    def outcome(self, share: float) -> Outcome:
        is_enough = len(self._undisturbed) == self._wanted
        detail = f"all {_described(self._all)}"
        if self._undisturbed:
            detail += (
                f"; beside which other machines took at most {usage.DISTURBED:.0%} of the processors:"
                f" {_described(self._undisturbed)}{'' if is_enough else ', too few to count'}"
            )
        return Outcome(ours=_at(self._undisturbed if is_enough else self._all, share), detail=detail)


@dataclass(frozen=True, slots=True)
class Hook:
    watch: Watch
    url: str
    secret: str

    @classmethod
    def of(cls, stage: Stage, watch: Watch) -> "Hook":
        made = stage.service.call("POST", f"/repositories/{watch.repository_id}/hook", watch.app.bearer)
        return cls(watch, made["url"], made["secret"])

    def request(self, commit: str) -> bytes:
        """All that goes over the wire, so that sending it costs this machine as little as a host elsewhere does."""
        headers, body = push_hook.message(self.secret, path=self.watch.remote.name, commit=commit)
        target = urlsplit(self.url)
        lines = [f"POST {target.path} HTTP/1.1", f"Host: {target.netloc}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body

    def send(self, commit: str) -> int:
        return push_hook.send(self.url, self.secret, path=self.watch.remote.name, commit=commit)


def idle(bench: Bench, *, pushes: int, share: float) -> Outcome:
    return bench.once("idle", lambda: _idle(bench, pushes)).outcome(share)


def busy(bench: Bench, *, pushes: int) -> Outcome:
    synced = bench.synced("medium", bench.generated("medium", bench.sizes.medium))
    stage = synced.stage
    hook = Hook.of(stage, synced.watch)
    other = stage.publish("bench/first", bench.generated("medium", bench.sizes.medium)())
    small = stage.create("bench/small", [("README.md", b"small\n")])
    took = Pushes(pushes)
    with _hanging_endpoint() as endpoint, _first_syncs(stage, other):
        while not took.are_enough:
            for number in range(_HANGING):
                bearer = stage.service.inside("onboard", f"hangs-{len(took)}-{number}", endpoint, "x" * 32)
                stage.service.call("POST", "/repositories", bearer, {"github_url": small.url})
            until = time.monotonic() + _HANG_SECONDS
            while time.monotonic() < until and not took.are_enough:
                took.add(*_push(stage, hook, len(took), bench.patience))
    return took.outcome(0.99)


def _idle(bench: Bench, pushes: int) -> Pushes:
    synced = bench.synced("medium", bench.generated("medium", bench.sizes.medium))
    hook = Hook.of(synced.stage, synced.watch)
    took = Pushes(pushes)
    while not took.are_enough:
        took.add(*_push(synced.stage, hook, len(took), bench.patience))
    return took


def _push(stage: Stage, hook: Hook, number: int, patience: float) -> tuple[float, float]:
    """Seconds, and the share of the processors that other machines took meanwhile."""
    time.sleep(_PAUSE)
    commit = hook.watch.remote.commit({"pushed.md": b"%d %f\n" % (number, time.time())})
    stolen, sent = usage.Stolen(), time.monotonic()
    # 503 if Valkey was too slow for the answer. What counts is when the app hears of the push.
    if (status := hook.send(commit)) not in (202, 503):
        raise RuntimeError(f"the hook was answered with {status}")
    return stage.told(hook.watch, commit, paths=1, seconds=patience).first_at - sent, stolen.share


def _described(took: list[float]) -> str:
    return f"{len(took)} pushes: p50 {_at(took, 0.5):.3f} s, p99 {_at(took, 0.99):.3f} s, worst {max(took):.3f} s"


def _at(took: list[float], share: float) -> float:
    return sorted(took)[min(len(took) - 1, int(share * len(took)))]


@contextmanager
def _hanging_endpoint() -> Iterator[str]:
    """Accepts connections and never answers."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=256)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def _first_syncs(stage: Stage, other: Remote) -> Iterator[None]:
    """One first sync after the other, until the block ends."""
    ended = threading.Event()

    def sync_again_and_again() -> None:
        app = stage.onboard("first")
        while not ended.is_set():
            watch = stage.watch(app, other)  # watching again starts over
            while not ended.wait(0.5):
                state = stage.service.call("GET", f"/repositories/{watch.repository_id}", app.bearer)
                if state["status"] == "synced":
                    break

    thread = threading.Thread(target=sync_again_and_again)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
