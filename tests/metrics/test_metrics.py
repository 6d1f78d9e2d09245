"""/metrics: what was done is counted once per run, the rest is read when it is asked for, and faults are shown."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.db import OperationalError, connection
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import Client
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from rq.utils import as_text

from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from docora.metrics import collector, database_readings
from docora.metrics.patience import PatientReader
from repositories.base import connections, counters, disks, pulse, queue
from repositories.models import App, Repository, Watch
from snapshots import look
from snapshots.delivery import _posting
from snapshots.models import Delivered, Delivery, Parked
from snapshots.schedule import tick
from tests.support.large_repository import grow
from tests.support.metrics import TOKEN, Sampled, needs_promtool, promtool
from tests.support.redis_away import redis_away
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)
Scrape = Callable[[], Sampled]
AS_PROMETHEUS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def scrape(client: Client, settings: Any) -> Scrape:
    settings.METRICS_TOKEN = TOKEN

    def read() -> Sampled:
        answer = client.get("/metrics", headers=AS_PROMETHEUS)
        assert answer.status_code == 200
        return Sampled(answer.text)

    return read


@pytest.mark.any_database
def test_there_are_no_metrics_without_a_token_in_the_settings(client: Client) -> None:
    assert client.get("/metrics").status_code == 404
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 404


@pytest.mark.any_database
@pytest.mark.parametrize(
    "given", ["", TOKEN, f"Basic {TOKEN}", "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", "Bearer \xfc"]
)
def test_the_wrong_token_is_refused(client: Client, settings: Any, given: str) -> None:
    settings.METRICS_TOKEN = TOKEN
    answer = client.get("/metrics", headers={"Authorization": given})
    assert (answer.status_code, answer.content, answer["WWW-Authenticate"]) == (401, b"", "Bearer")


@pytest.mark.any_database
def test_the_token_is_compared_in_constant_time(client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.METRICS_TOKEN = TOKEN
    compared: list[set[bytes]] = []

    def differ(*both: bytes) -> bool:
        compared.append(set(both))
        return False

    monkeypatch.setattr("docora.metrics.view.hmac.compare_digest", differ)
    assert client.get("/metrics", headers=AS_PROMETHEUS).status_code == 401
    assert compared == [{TOKEN.encode()}]


@pytest.mark.any_database
def test_a_prometheus_that_prefers_openmetrics_gets_it(client: Client, scrape: Scrape) -> None:
    accept = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5", **AS_PROMETHEUS}
    answer = client.get("/metrics", headers=accept)
    assert answer["Content-Type"].startswith("application/openmetrics-text")
    names = {family.name for family in parse_openmetrics(answer.text)}  # type: ignore[no-untyped-call]
    assert {"docora_looks", "docora_look_seconds", "docora_build", "docora_up", "docora_parked_files"} <= names


def test_a_change_is_counted_from_its_look_to_its_acknowledgement(
    scrape: Scrape, watch: Watch, remote: HostedRepository, work: Work
) -> None:
    first = scrape()
    assert first["docora_push_to_acknowledged_seconds_count", "app_class=fast"] == 0, "a first sync is not counted"
    remote.commit({"README.md": "# Handbook, revised\n"})
    look.take_snapshot(watch.repository_id, job_id="look")
    work()
    then = scrape()
    assert then["docora_looks_total", "via=git", "outcome=changed"] == 2
    assert (then["docora_look_seconds_count", "via=git"], then["docora_fetch_seconds_count"]) == (2, 2)
    assert (then["docora_fetches_total", "outcome=ok"], then["docora_fetches_total", "outcome=failed"]) == (2, 0)
    assert then["docora_snapshots_total"] == 2
    assert then["docora_deliveries_total", "app_class=fast", "outcome=accepted"] == 4
    assert then["docora_delivery_seconds_count", "app_class=fast"] == 4
    assert then["docora_push_to_acknowledged_seconds_count", "app_class=fast"] == 1
    assert then["docora_push_to_acknowledged_seconds_bucket", "app_class=fast", "le=60.0"] == 1
    assert 0 < then["docora_push_to_acknowledged_seconds_sum", "app_class=fast"] < 60


def test_an_app_that_missed_commits_is_counted_by_the_oldest_of_them(
    scrape: Scrape, watch: Watch, remote: HostedRepository, work: Work
) -> None:
    for text in ("one", "two"):
        remote.commit({"README.md": text})
        look.take_snapshot(watch.repository_id, job_id="look")
        time.sleep(0.3)
    work()
    assert scrape()["docora_push_to_acknowledged_seconds_sum", "app_class=fast"] > 0.6


def test_a_look_over_http_is_counted(scrape: Scrape, watch: Watch, remote: HostedRepository) -> None:
    Repository.objects.update(next_check_at=watch.created_at)
    tick()
    then = scrape()
    assert then["docora_looks_total", "via=http", "outcome=unchanged"] == 1
    assert then["docora_look_seconds_count", "via=http"] == 1
    remote.commit({"README.md": "# Changed\n"})
    Repository.objects.update(next_check_at=watch.created_at)
    tick()
    assert scrape()["docora_looks_total", "via=http", "outcome=passed-on"] == 1


def test_failures_and_refusals_have_outcomes_of_their_own(
    scrape: Scrape, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
) -> None:
    for status, path in ((422, "README.md"), (503, "new.md")):
        remote.commit({path: "text\n"})
        look.take_snapshot(watch.repository_id, job_id="look")
        with alice.faults.put(ReceiverFault(status=status)):
            work()
    then = scrape()
    assert then["docora_deliveries_total", "app_class=fast", "outcome=refused"] == 1
    assert then["docora_deliveries_total", "app_class=fast", "outcome=status"] == 1
    assert then["docora_parked_files"] == 1


def test_every_way_in_which_a_webhook_fails_is_an_outcome() -> None:
    kinds = {kind for _, kind in _posting._MEANINGS.values()}
    kinds |= {"timeout", "status", "forbidden-address", "proxy", "protocol"}
    assert kinds <= set(counters.DELIVERIES.labels["outcome"])


def test_what_was_counted_stays_when_the_log_is_trimmed(scrape: Scrape, watch: Watch) -> None:
    before = scrape()["docora_deliveries_total", "app_class=fast", "outcome=accepted"]
    Delivery.objects.all().delete()
    assert scrape()["docora_deliveries_total", "app_class=fast", "outcome=accepted"] == before == 3


def test_a_run_writes_once_however_much_it_sends(
    alice_app: App, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    from repositories import watches

    remote.commit({f"docs/{number}.md": "text\n" for number in range(100)})
    watches.watch(alice_app, remote.url)
    written: list[int] = []
    write = counters.Counts.write

    def write_and_note(counts: counters.Counts) -> None:
        written.append(len(counts._numbers))
        write(counts)

    monkeypatch.setattr(counters.Counts, "write", write_and_note)
    work()
    assert Delivered.objects.count() == 103
    assert len([fields for fields in written if fields]) == 2, "one look, one delivery"
    assert max(written) < 20, "and not one field for each message"


@pytest.mark.any_database
def test_every_field_in_redis_is_one_that_is_shown(
    fake_redis: redis.Redis, watch: Watch, remote: HostedRepository, work: Work
) -> None:
    tick()
    shown = {
        "|".join((each.name, *labels, *bucket))
        for each in counters.ALL
        for labels in each.combinations
        for bucket in ([(b,) for b in (*each.buckets, "sum")] if isinstance(each, counters.Histogram) else [()])
    }
    found = {as_text(field) for field in fake_redis.hgetall("docora:metrics")}
    assert found
    assert found <= shown
    assert len(shown) < 300, "the number of time series is bounded"


@pytest.mark.any_database
def test_a_redis_that_is_away_costs_the_numbers_and_not_the_run(
    watch: Watch, remote: HostedRepository, work: Work, alice: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "connection", redis_away)
    remote.commit({"README.md": "# Uncounted\n"})
    look.take_snapshot(watch.repository_id, job_id="look")
    work()
    assert alice.files_of(watch.repository.public_id)["README.md"] == b"# Uncounted\n"


def test_without_redis_the_database_is_shown_and_redis_is_down(
    client: Client, scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "connect", lambda **_: redis_away())
    counters.connection.cache_clear()
    then = scrape()
    assert (then["docora_up", "part=redis"], then["docora_up", "part=database"]) == (0, 1)
    assert "docora_repositories" in then.names
    assert "docora_looks_total" not in then.names


def test_without_the_database_redis_is_shown_and_the_database_is_down(
    scrape: Scrape, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("the server is gone")

    monkeypatch.setattr(BaseDatabaseWrapper, "connect", fail)  # of the thread that reads
    then = scrape()
    assert (then["docora_up", "part=redis"], then["docora_up", "part=database"]) == (1, 0)
    assert "docora_looks_total" in then.names
    assert "docora_repositories" not in then.names


def test_a_database_that_hangs_is_down_and_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = threading.Event()

    def hang() -> list[Any]:
        answers.wait(30)
        return []

    monkeypatch.setattr(collector, "_PATIENCE", 0.2)
    monkeypatch.setattr(database_readings, "read", hang)
    docora = collector.DocoraCollector()
    before = set(threading.enumerate())  # one of another test may end meanwhile

    def is_up() -> float:
        [up] = [family for family in docora.collect() if family.name == "docora_up"]
        return {sample.labels["part"]: sample.value for sample in up.samples}["database"]

    assert [is_up() for _ in range(3)] == [0, 0, 0]
    assert len(set(threading.enumerate()) - before) == 1, "no further thread while the first one hangs"
    answers.set()
    monkeypatch.setattr(collector, "_PATIENCE", 30)
    assert is_up() == 1


def test_two_that_ask_at_the_same_time_share_one_reading() -> None:
    began: list[float] = []
    may_end = threading.Event()

    def read() -> list[Any]:
        began.append(time.monotonic())
        may_end.wait(30)
        return []

    reader = PatientReader(read)
    found: list[Any] = []
    asking = [threading.Thread(target=lambda: found.append(reader.read(seconds=30))) for _ in range(2)]
    for thread in asking:
        thread.start()
    may_end.set()
    for thread in asking:
        thread.join()
    assert found == [[], []]
    assert len(began) <= 2


@pytest.mark.any_database
def test_queues_are_shown_with_their_length_and_the_age_of_the_oldest_job(scrape: Scrape) -> None:
    for number in (1, 2, 3):
        queue.enqueue(
            queue.SNAPSHOTS,
            "snapshots.jobs.take_snapshot",
            number,
            job_id=f"snapshot-{number}",
            timeout=60,
            first=number == 3,
        )
    queue.connection().hset("rq:job:snapshot-1", "enqueued_at", "2020-01-01T00:00:00.000000Z")
    then = scrape()
    assert then["docora_jobs", "queue=snapshots", "state=waiting"] == 3
    age = then["docora_oldest_job_age_seconds", "queue=snapshots"]
    assert age > 365 * 86400, "the oldest is found behind the urgent one"
    for name in queue.ALL:
        assert then["docora_workers", f"queue={name}", "state=idle"] == 0


@pytest.mark.any_database
def test_living_workers_are_counted_and_dead_ones_are_not(scrape: Scrape, fake_redis: redis.Redis) -> None:
    for name, host in (("one", "a.example"), ("two", "b.example")):
        fake_redis.sadd("rq:workers", f"rq:worker:{name}")
        facts: dict[Any, Any] = {
            "hostname": host,
            "queues": "snapshots,deliveries",
            "state": "busy" if name == "two" else "idle",
        }
        fake_redis.hset(f"rq:worker:{name}", mapping=facts)
    fake_redis.sadd("rq:workers", "rq:worker:dead")
    then = scrape()
    assert then["docora_workers", "queue=snapshots", "state=idle"] == 1
    assert then["docora_workers", "queue=deliveries", "state=busy"] == 1
    assert then["docora_worker_hosts"] == 2


@pytest.mark.any_database
def test_each_host_tells_of_its_disk_and_is_forgotten_with_time(
    scrape: Scrape, fake_redis: redis.Redis, settings: Any, tmp_path: Any
) -> None:
    settings.REPOS_BASE_PATH = tmp_path
    disks.note(fake_redis)
    fake_redis.hset("docora:disks", "gone.example", "[1, 2, 0]")
    [(host, disk)] = disks.known(fake_redis).items()
    assert scrape()["docora_disk_free_bytes", f"host={host}"] > 0
    assert 0 < disk.free <= disk.size
    assert not fake_redis.hexists("docora:disks", "gone.example")


def test_apps_circuits_and_the_scheduler_are_shown(scrape: Scrape, watch: Watch, bob_app: App) -> None:
    App.objects.filter(pk=bob_app.pk).update(disabled_at=watch.created_at, slow_since=watch.created_at)
    Repository.objects.update(circuit_open_until=watch.created_at, next_check_at=watch.created_at)
    pulse.note_tick()
    then = scrape()
    assert (then["docora_apps", "class=fast"], then["docora_apps", "class=disabled"]) == (1, 1)
    assert (then["docora_apps", "class=slow"], then["docora_apps", "class=failing"]) == (0, 0)
    assert (then["docora_circuits_open"], then["docora_repositories"]) == (1, 1)
    assert then["docora_watches", "status=synced"] == 1
    assert then["docora_look_overdue_seconds"] > 0
    assert then["docora_scheduler_last_tick_age_seconds"] < 60


def test_a_count_reads_an_index_alone_and_stops_at_its_bound(watch: Watch) -> None:
    grow([watch], files=100_000)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO snapshots_parked (watch_id, file_id, sha256, reason, parked_at, again)"
            " SELECT watch_id, file_id, sha256, 'refused', delivered_at, %s FROM snapshots_delivered",
            [False],
        )
        cursor.execute("ANALYZE")
    counted = [
        database_readings.repositories(),
        database_readings.open_circuits(),
        database_readings.parked(),
        database_readings.watches("synced"),
    ]
    for rows in counted:
        plan = rows[: database_readings.MOST].explain()
        # The other tables have one row here, which PostgreSQL simply reads.
        if connection.vendor == "sqlite" or "parked" in plan:
            assert "COVERING INDEX" in plan or "Index Only Scan" in plan, plan
        assert "TEMP B-TREE" not in plan, plan
    assert Parked.objects.count() > database_readings.MOST
    assert database_readings.count(database_readings.parked()) == database_readings.MOST


@pytest.mark.any_database
@needs_promtool
def test_promtool_finds_nothing_to_complain_about(client: Client, scrape: Scrape, watch: Watch) -> None:
    text = client.get("/metrics", headers=AS_PROMETHEUS).text
    assert promtool("check", "metrics", given=text) == ""
