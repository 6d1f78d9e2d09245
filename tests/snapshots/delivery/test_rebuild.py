"""What the console shows of an attempt is what the receiver got."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver
from repositories import watches
from repositories.models import App
from snapshots.delivery import rebuild
from snapshots.models import Delivery

pytestmark = pytest.mark.django_db(transaction=True)


def without_what_is_not_kept(body: bytes | str) -> Any:
    """The exact millisecond and the random id of a transfer in pieces."""
    payload = json.loads(body)
    payload["timestamp"] = payload["timestamp"][:10]
    if "chunk" in payload["file"]:
        payload["file"]["chunk"].pop("id")
    return payload


def test_every_body_can_be_shown_as_it_was_sent(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Callable[..., None], settings: Settings
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES = settings.BINARY_CHUNK_SIZE_BYTES = 100
    remote.commit({b"latin1.txt": "déjà vu".encode("latin-1"), b"caf\xe9.md": b"x", b"large.bin": bytes(512)})
    watches.watch(alice_app, remote.url)
    work()
    remote.commit({"README.md": "# Changed\n", "docs/start.md": None})
    watches.ask_for_snapshot(alice_app.watches.get().repository)
    work()
    shown = {
        (delivery.event, delivery.message_id): without_what_is_not_kept(rebuild.body_of(delivery).text)
        for delivery in Delivery.objects.all()
    }
    got = {
        (request.event, request.headers["webhook-id"]): without_what_is_not_kept(request.body)
        for request in alice.requests
    }
    assert shown == got
    assert {event for event, _ in got} == {"create", "update", "delete"}


def test_a_piece_says_which_one_it_is(
    alice_app: App, alice: Receiver, remote: HostedRepository, work: Callable[..., None], settings: Settings
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES = settings.BINARY_CHUNK_SIZE_BYTES = 100
    remote.commit({"large.bin": bytes(range(256))})
    watches.watch(alice_app, remote.url)
    work()
    pieces = Delivery.objects.filter(path="large.bin").order_by("piece").values_list("piece", "pieces")
    assert list(pieces) == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert set(Delivery.objects.exclude(path="large.bin").values_list("piece", "pieces")) == {(0, 0)}
