"""What the console shows of an attempt is what the receiver got."""

from collections.abc import Callable

import pytest
from pytest_django import Settings

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import watches
from repositories.models import App, Watch
from snapshots.delivery import rebuild
from snapshots.models import Delivery

pytestmark = pytest.mark.django_db(transaction=True)


def shown() -> dict[tuple[str, str], bytes]:
    return {(each.event, each.message_id): rebuild.body_of(each).text.encode() for each in Delivery.objects.all()}


def got(receiver: Receiver) -> dict[tuple[str, str], bytes]:
    return {(request.event, request.headers["webhook-id"]): request.body for request in receiver.requests}


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
    assert shown() == got(alice)
    assert {event for event, _ in got(alice)} == {"create", "update", "delete"}


def test_an_update_names_what_the_app_had_and_not_what_the_manifest_had(
    watch: Watch, alice: Receiver, remote: HostedRepository, work: Callable[..., None]
) -> None:
    remote.commit({"README.md": "refused"})
    with alice.faults.put(ReceiverFault(status=422)):
        watches.ask_for_snapshot(watch.repository)
        work()
    remote.commit({"README.md": "accepted"})
    watches.ask_for_snapshot(watch.repository)
    work()
    assert shown() == got(alice)


def test_a_piece_of_another_size_than_is_set_now_is_not_made_up(
    alice_app: App, remote: HostedRepository, work: Callable[..., None], settings: Settings
) -> None:
    settings.BINARY_CHUNK_THRESHOLD_BYTES = settings.BINARY_CHUNK_SIZE_BYTES = 100
    remote.commit({"large.bin": bytes(range(256))})
    watches.watch(alice_app, remote.url)
    work()
    for size in (50, 10_000):
        settings.BINARY_CHUNK_THRESHOLD_BYTES = settings.BINARY_CHUNK_SIZE_BYTES = size
        for delivery in Delivery.objects.filter(path="large.bin"):
            body = rebuild.body_of(delivery)
            assert (body.text, body.missing) == ("", "It was sent when other sizes were set for files in pieces.")


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
