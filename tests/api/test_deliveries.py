"""An app looks after its own webhooks: the log, sending again, a test event, another key."""

from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from docora.api import deliveries
from docora.demo.githost import GitHost, HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import watches
from repositories.base import cursors
from repositories.models import App, Repository, Watch
from snapshots.models import Delivery
from tests.support.api import Api
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def watched(repository_id: str) -> str:
    return f"/api/repositories/{repository_id}"


def attempts(api: Api, path: str) -> list[Any]:
    found: list[Any] = api.get(path).json()["deliveries"]
    return found


def test_the_log_shows_every_attempt_newest_first(alice_api: Api, watched: str, remote: HostedRepository) -> None:
    found, cursor = [], ""
    while cursor is not None:
        page = alice_api.get(f"{watched}/deliveries?limit=2&cursor={cursor}").json()
        found += page["deliveries"]
        cursor = page["next_cursor"]
    assert {attempt["path"] for attempt in found} == set(remote.files())
    assert found == sorted(found, key=lambda attempt: (attempt["attempted_at"], attempt["id"]), reverse=True)
    assert all(attempt["accepted"] and attempt["commit_sha"] == remote.tip() for attempt in found)
    assert attempts(alice_api, f"{watched}/deliveries?failed=true") == []


@pytest.mark.parametrize("question", ["path=%00", "status=99", "since=yesterday", "event=delte"])
def test_a_filter_that_makes_no_sense_is_422(alice_api: Api, watched: str, question: str) -> None:
    answer = alice_api.get(f"{watched}/deliveries?{question}")
    assert (answer.status_code, answer.json()["code"]) == (422, "malformed")


def test_the_log_is_filtered_by_path_event_status_and_time(
    alice_api: Api, alice: Receiver, watched: str, remote: HostedRepository, work: Work
) -> None:
    """A half of the rows is dated back by an hour."""
    remote.commit({"README.md": "# Another\n", "docs/start.md": None})
    watches.request_snapshot(Repository.objects.get())
    with alice.faults.put(ReceiverFault(path="README.md", status=422)):
        work()
    now = timezone.now()
    Delivery.objects.filter(event="create").update(attempted_at=now - timedelta(hours=1))

    def found(**filters: Any) -> set[tuple[str, str]]:
        page = attempts(alice_api, f"{watched.replace('/api/', '/api/v1/')}/deliveries?{urlencode(filters)}")
        return {(attempt["event"], attempt["path"]) for attempt in page}

    assert found(path="README.md") == {("create", "README.md"), ("update", "README.md")}
    assert found(path="READ") == set()
    assert found(event="delete") == {("delete", "docs/start.md")}
    assert found(status=422) == found(failed=True) == {("update", "README.md")}
    assert {event for event, _ in found(until=(now - timedelta(minutes=1)).isoformat())} == {"create"}
    assert {event for event, _ in found(since=f"{now - timedelta(minutes=1):%Y-%m-%dT%H:%M:%SZ}")} == {
        "update",
        "delete",
    }
    assert found(path="README.md", event="create", status=422) == set()
    assert found(since=now.isoformat(), until=now.isoformat()) == set()


@pytest.mark.parametrize(
    "query",
    ["event=push", "status=99", "since=yesterday", "since=2026-01-31T09:30:00", "until=0001-01-01T00:00%2B14:00"],
)
def test_a_filter_that_cannot_be_is_422(alice_api: Api, watched: str, query: str) -> None:
    assert alice_api.get(f"{watched}/deliveries?{query}").status_code == 422


def test_a_delivery_has_an_id_named_like_the_others(alice_api: Api, watched: str) -> None:
    for attempt in attempts(alice_api, f"{watched}/deliveries"):
        assert attempt["delivery_id"] == attempt["id"] == Delivery.objects.get(message_id=attempt["message_id"]).pk


def test_a_file_in_pieces_says_which_piece_each_attempt_was(
    alice_api: Api, alice: Receiver, watched: str, remote: HostedRepository, work: Work, settings: Any
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES, settings.BINARY_CHUNK_SIZE_BYTES = 10, 16
    remote.commit({"large.bin": b"\xff" * 30})
    alice_api.call("POST", f"{watched}/refresh")
    work()
    logged = attempts(alice_api, f"{watched}/deliveries?path=large.bin")
    sent = [request.payload["file"]["chunk"] for request in alice.requests if request.path == "large.bin"]
    assert [(each["index"] + 1, each["total"]) for each in sent] == [(1, 3), (2, 3), (3, 3)]
    assert [(each["piece"], each["pieces"]) for each in reversed(logged)] == [(1, 3), (2, 3), (3, 3)]
    whole = attempts(alice_api, f"{watched}/deliveries?path=README.md")
    assert [(each["piece"], each["pieces"]) for each in whole] == [(None, None)]


@pytest.mark.any_database  # PostgreSQL reads so few rows without an index
def test_every_filter_reads_a_range_of_the_index(watched: str) -> None:
    """By watch and time, in the order of the page: no sorting, and no row of another watch."""
    moment, rows = timezone.now(), Watch.objects.get().deliveries.order_by("-attempted_at", "-pk")
    for filtered in (
        rows.filter(path="README.md"),
        rows.filter(event="create", status=200, attempted_at__gte=moment, attempted_at__lt=moment),
        rows.filter(deliveries._older(cursors.encode("deliveries", 1_000_000, 7))),
    ):
        assert "delivery_of_watch" in filtered[:101].explain()


def test_a_failure_shows_what_the_endpoint_said(
    alice_api: Api, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    with alice.faults.put(ReceiverFault(path="logo.png", status=413)):
        repository_id = alice_api.watch(remote.url).json()["repository_id"]
        work()
    (failure,) = attempts(alice_api, f"/api/repositories/{repository_id}/deliveries?failed=true")
    assert (failure["path"], failure["status"], failure["accepted"]) == ("logo.png", 413, False)
    assert failure["error"]


def test_a_delivery_is_sent_again_under_its_own_id(alice_api: Api, alice: Receiver, watched: str, work: Work) -> None:
    (logo,) = [a for a in attempts(alice_api, f"{watched}/deliveries") if a["path"] == "logo.png"]
    alice.requests.clear()
    alice.mirror.repeats_are_allowed = True
    answer = alice_api.call("POST", f"{watched}/deliveries/{logo['id']}/redeliver")
    assert answer.status_code == 202
    work()
    assert [(request.event, request.path) for request in alice.requests] == [("create", "logo.png")]
    assert alice.requests[0].headers["webhook-id"] == logo["message_id"]


@pytest.mark.parametrize("delivery_id", ["0", "999999", "9" * 40])
def test_an_unknown_delivery_is_404(alice_api: Api, watched: str, delivery_id: str) -> None:
    assert alice_api.call("POST", f"{watched}/deliveries/{delivery_id}/redeliver").status_code == 404


def test_a_resync_delivers_every_file_again(
    alice_api: Api, alice: Receiver, watched: str, remote: HostedRepository, work: Work
) -> None:
    alice.requests.clear()
    alice.mirror.repeats_are_allowed = True
    remote.commit({"new.md": "new"})
    assert alice_api.call("POST", f"{watched}/resync").status_code == 202
    assert alice_api.get(watched).json()["status"] == "pending_snapshot"
    work()
    assert {request.path for request in alice.requests} == set(remote.files())
    assert alice_api.get(watched).json()["synced_commit"] == remote.tip()


def test_a_ping_shows_the_endpoints_answer(alice_api: Api, alice: Receiver, git_host: GitHost) -> None:
    result = alice_api.call("POST", "/api/ping").json()
    assert (result["status"], result["accepted"]) == (alice.requests[-1].status, result["status"] == 200)
    assert alice.requests[-1].event == "ping"
    App.objects.update(base_url="http://127.0.0.1:9")
    result = alice_api.call("POST", "/api/ping").json()
    assert (result["status"], result["accepted"]) == (None, False)
    assert result["error"]


def test_the_app_sees_itself_without_its_secrets(alice_api: Api, watched: str) -> None:
    answer = alice_api.get("/api/app")
    app = App.objects.get()
    assert (answer.json()["app_id"], answer.json()["watches"]) == (app.public_id, 1)
    assert app.webhook_key not in answer.content.decode()
    assert answer["Cache-Control"] == "no-store"


def test_a_rotated_key_signs_beside_the_old_one(alice_api: Api, alice: Receiver, remote: HostedRepository) -> None:
    old = App.objects.get().webhook_key
    answer = alice_api.call("POST", "/api/app/webhook-key/rotate")
    assert answer.status_code == 200
    app = App.objects.get()
    assert app.signing_keys == [answer.json()["webhook_key"], old]
    own = {"webhook_key": "a-key-of-my-own-making", "overlap_seconds": 0}
    assert alice_api.call("POST", "/api/app/webhook-key/rotate", own).json()["webhook_key"] == own["webhook_key"]
    assert App.objects.get().signing_keys == [own["webhook_key"]]
    assert alice_api.call("POST", "/api/app/webhook-key/rotate", {"webhook_key": "short"}).status_code == 422


def test_no_call_of_one_app_reaches_anything_of_another(
    alice_api: Api, bob_api: Api, watched: str, remote: HostedRepository, work: Work
) -> None:
    bobs = bob_api.watch(remote.url).json()["repository_id"]
    work()
    bob_delivery = attempts(bob_api, f"/api/repositories/{bobs}/deliveries")[0]["id"]
    bob_api.call("DELETE", f"/api/repositories/{bobs}")
    alices_delivery = attempts(alice_api, f"{watched}/deliveries")[0]["id"]
    before = Watch.objects.values().get()
    for method, door in [
        ("GET", ""),
        ("DELETE", ""),
        ("PATCH", "/token"),
        ("POST", "/resync"),
        ("GET", "/files"),
        ("GET", "/files/README.md"),
        ("GET", "/changes"),
        ("GET", "/changes?wait=30"),
        ("GET", "/deliveries"),
        ("POST", f"/deliveries/{alices_delivery}/redeliver"),
    ]:
        body = {"github_token": "x"} if method == "PATCH" else None
        answer = bob_api.call(method, watched + door, body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not-watched"), door
    assert bob_api.get("/api/repositories").json()["repositories"] == []
    assert bob_api.get("/api/app").json()["name"] == "Bob's wiki"
    assert alice_api.call("POST", f"{watched}/deliveries/{bob_delivery}/redeliver").status_code == 404
    assert Watch.objects.values().get() == before


def test_a_delivery_of_another_watch_of_the_same_repository_cannot_be_redelivered(
    alice_api: Api, bob_api: Api, watched: str, remote: HostedRepository, work: Work
) -> None:
    bob_api.watch(remote.url)
    work()
    alices = attempts(alice_api, f"{watched}/deliveries")[0]["id"]
    assert bob_api.call("POST", f"{watched}/deliveries/{alices}/redeliver").status_code == 404
    assert alices not in {attempt["id"] for attempt in attempts(bob_api, f"{watched}/deliveries")}
