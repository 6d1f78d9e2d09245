"""One number for all that an app has: what it is, that it is kept, and that it is put right."""

import hashlib
import importlib

import pytest
from django.apps import apps
from hypothesis import given
from hypothesis import strategies as st

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from repositories import accounts
from repositories.models import Watch, WatchStatus
from snapshots import digests, holdings, reconcile
from snapshots.delivery import redelivery
from snapshots.digests import Holdings
from snapshots.models import Delivered, Delivery
from tests.support.api import Api
from tests.support.worker import Look, Work

FILES = st.dictionaries(st.binary(min_size=1, max_size=20), st.binary(min_size=32, max_size=32), max_size=8)


def by_definition(files: dict[bytes, bytes]) -> str:
    """The sentence of the documentation, word by word."""
    total = 0
    for path, sha256 in files.items():
        total += int(hashlib.sha256(len(path).to_bytes(8, "big") + path + sha256).hexdigest(), 16)
    return format(total % 2**256, "064x")


def of_contents(files: dict[str, bytes]) -> Holdings:
    hashed = {path.encode(): hashlib.sha256(content).digest() for path, content in files.items()}
    return Holdings(len(hashed), by_definition(hashed))


@given(before=FILES, after=FILES)
def test_keeping_it_up_to_date_gives_what_computing_it_anew_gives(
    before: dict[bytes, bytes], after: dict[bytes, bytes]
) -> None:
    has = digests.of_files(before.items())
    for file in before.items():
        has = has.changed(minus=[file])
    assert has == Holdings()
    has = digests.of_files(before.items()).changed(plus=after.items(), minus=before.items())
    assert has == digests.of_files(after.items()) == Holdings(len(after), by_definition(after))


@pytest.mark.django_db(transaction=True)
class TestOfAWatch:
    def test_follows_creates_updates_and_deletes(
        self, watch: Watch, remote: HostedRepository, alice: Receiver, look: Look
    ) -> None:
        for changes in ({}, {"README.md": "two", "docs/start.md": None, b"caf\xe9.md": "three"}, {"logo.png": None}):
            if changes:
                remote.commit(changes)  # type: ignore[arg-type]
                look()
            watch.refresh_from_db()
            assert holdings.recorded(watch) == holdings.counted(watch)
            exact = {
                path.encode(errors="surrogateescape"): hashlib.sha256(content).digest()
                for path, content in alice.files[watch.repository.public_id].items()
            }
            assert (watch.files, watch.digest) == (len(exact), by_definition(exact))

    def test_counts_a_parked_update_with_what_the_app_has_and_a_parked_create_not_at_all(
        self, watch: Watch, remote: HostedRepository, alice: Receiver, look: Look
    ) -> None:
        had = of_contents(remote.files())
        remote.commit({"README.md": "refused", "new.md": "refused"})
        with alice.faults.put(ReceiverFault(status=422)):
            look()
        watch.refresh_from_db()
        assert watch.status == WatchStatus.SYNCED
        assert holdings.recorded(watch) == had

    def test_does_not_change_while_everything_is_sent_again(
        self, watch: Watch, remote: HostedRepository, work: Work
    ) -> None:
        had = of_contents(remote.files())
        redelivery.resync(watch)
        watch.refresh_from_db()
        assert holdings.recorded(watch) == holdings.counted(watch) == had
        work()
        watch.refresh_from_db()
        assert holdings.recorded(watch) == had

    def test_does_not_count_a_row_that_only_asks_for_a_delete_to_be_repeated(
        self, watch: Watch, remote: HostedRepository, alice: Receiver, look: Look, work: Work
    ) -> None:
        remote.commit({"README.md": None})
        look()
        has = of_contents(remote.files())
        redelivery.redeliver(Delivery.objects.get(event="delete"))
        redelivery.resync(watch)
        for _ in range(2):
            watch.refresh_from_db()
            assert holdings.recorded(watch) == holdings.counted(watch) == has
            work()
        assert [request.event for request in alice.requests].count("delete") == 2

    def test_counts_an_acknowledgement_once_when_two_runs_record_it(
        self, watch: Watch, remote: HostedRepository, look: Look
    ) -> None:
        from snapshots.changes import changes_for
        from snapshots.delivery import _recording

        Watch.objects.update(synced_sequence=0)
        Delivered.objects.all().delete()
        Watch.objects.update(files=0, digest="0" * 64)
        changes = list(changes_for(Watch.objects.get(), 1))
        for _ in range(2):
            now = _recording.read_watch(watch.pk)
            assert now
            _recording.acknowledge(watch, now, changes)
        assert holdings.recorded(Watch.objects.get()) == of_contents(remote.files())

    def test_is_recomputed_by_reconcile_which_names_a_difference(
        self, watch: Watch, remote: HostedRepository, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert not list(reconcile._wrong_digests())
        Watch.objects.update(digest="1" * 64, files=7)
        reconcile.run(job_id="test")
        assert holdings.recorded(Watch.objects.get()) == of_contents(remote.files())
        assert "it stood for 7 files" in caplog.text

    def test_is_filled_in_for_what_was_delivered_before_it_was_kept(
        self, watch: Watch, remote: HostedRepository
    ) -> None:
        Watch.objects.update(digest="0" * 64, files=0)
        migration = importlib.import_module("snapshots.migrations.0007_fill_in_digests")
        migration.fill_in(apps, None)
        assert holdings.recorded(Watch.objects.get()) == of_contents(remote.files())

    def test_is_in_the_state_and_in_the_list_of_files(self, watch: Watch, remote: HostedRepository) -> None:
        api, url = Api(accounts.rotate_bearer_token(watch.app)), f"/api/repositories/{watch.repository.public_id}"
        watch.refresh_from_db()
        assert watch.digest == of_contents(remote.files()).digest
        answers = [api.get(url), api.get(f"{url}/files")]
        assert [answer.json()["digest"] for answer in answers] == [watch.digest] * 2
