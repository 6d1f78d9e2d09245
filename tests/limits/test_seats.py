"""Seats: which requests may keep a thread of the web process waiting, and how many of them."""

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import redis

from docora.demo.githost import HostedRepository
from docora.limits import seats
from repositories import accounts
from repositories.base import connections
from repositories.errors import Busy, DocoraError, TooManyAtOnce
from repositories.models import App
from tests.support.api import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.any_database]


@pytest.fixture
def apps() -> list[App]:
    made = [accounts.onboard(f"App {number}", "http://127.0.0.1:9") for number in range(20)]
    return list(App.objects.filter(public_id__in=[credentials.app_id for credentials in made]))


def take_all(stack: ExitStack, take: Callable[[], object]) -> int:
    """Take seats until one is refused; returns how many there were. They are free again when the stack ends."""
    for number in range(100):
        try:
            stack.enter_context(take())  # type: ignore[arg-type]
        except DocoraError:
            return number
    raise AssertionError("seats without end")


def test_calls_leave_a_quarter_of_the_threads_to_other_requests(apps: list[App]) -> None:
    callers = iter(apps)
    with ExitStack() as stack:
        assert take_all(stack, lambda: seats.calling(next(callers))) == 12
        with pytest.raises(Busy), seats.calling(next(callers)):
            pass
    with seats.calling(apps[0]):
        pass


def test_one_app_cannot_take_all_seats(apps: list[App]) -> None:
    alice, bob = apps[:2]
    with ExitStack() as stack:
        assert take_all(stack, lambda: seats.calling(alice)) == 6
        with pytest.raises(TooManyAtOnce), seats.calling(alice):
            pass
        with seats.calling(bob):
            pass


def test_waiting_for_changes_leaves_seats_for_calls_and_counts_among_them(
    apps: list[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight may wait; with eight waiting, four calls have room, and a ninth request does not wait."""
    monkeypatch.setattr(seats, "_PAUSE", 0.01)
    over, waiting = threading.Event(), threading.Semaphore(0)

    def condition() -> bool:
        waiting.release()
        return over.is_set()

    threads = [threading.Thread(target=seats.wait_until, args=(condition,), kwargs={"seconds": 60}) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
            assert waiting.acquire(timeout=30)
        seats.wait_until(lambda: False, seconds=60)
        callers = iter(apps)
        with ExitStack() as stack:
            assert take_all(stack, lambda: seats.calling(next(callers))) == 4
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_one_ping_per_app_is_under_way(alice_app: App, bob_app: App, valkey: redis.Redis) -> None:
    with seats.pinging(alice_app):
        # As another process would see it: the seats of this one play no part.
        with pytest.raises(TooManyAtOnce), seats.pinging(alice_app):
            pass
        with seats.pinging(bob_app):
            pass
    with seats.pinging(alice_app):
        pass


def test_without_redis_a_ping_takes_a_seat_only(alice_app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "connect", lambda **_: redis.Redis(unix_socket_path="/nowhere/valkey.sock"))
    with seats.pinging(alice_app), seats.pinging(alice_app):
        pass


def test_every_call_that_dials_asks_for_a_seat(
    alice_api: Api, remote: HostedRepository, apps: list[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository_id = alice_api.watch(remote.url).json()["repository_id"]
    alice = App.objects.filter(name="Alice's search")
    alice.update(may_change_base_url=True)
    alice.get().watches.update(access_proven_at=None)
    door = f"/api/repositories/{repository_id}"
    calls: list[tuple[str, str, object]] = [
        ("POST", "/api/ping", None),
        ("POST", "/api/repositories", {"github_url": remote.url}),
        ("POST", "/api/repositories", {"github_url": remote.url, "dry_run": True}),
        ("PUT", "/api/repositories", {"github_url": remote.url, "branch": "next"}),
        ("PATCH", "/api/app", {"base_url": "http://127.0.0.1:9/other"}),
        ("PATCH", f"{door}/token", {"github_token": "ghp_new"}),
        ("DELETE", f"{door}/token", None),
        ("POST", f"{door}/verify", {"files": []}),
        ("GET", f"{door}/files", None),
        ("GET", f"{door}/files/README.md", None),
        ("GET", f"{door}/changes", None),
    ]
    callers = iter(apps)
    with ExitStack() as stack:
        take_all(stack, lambda: seats.calling(next(callers)))
        for method, path, body in calls:
            answer = alice_api.call(method, path, body)
            assert (answer.status_code, answer.json()["code"]) == (503, "busy"), path
            assert int(answer["Retry-After"]) > 0
        assert alice_api.get(door).status_code == 200
        assert alice_api.get("/api/repositories").status_code == 200
