"""Log lines: JSON or text, with what they have in common, and without secrets."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from rq.job import Job

from docora import logs
from docora.demo.githost import HostedRepository
from docora.demo.receiver import Receiver, ReceiverFault
from docora.processes.worker import Worker
from repositories import messages
from repositories.base import log_context, queue
from repositories.models import Watch
from repositories.repo_lock import repo_lock
from snapshots import look
from snapshots.delivery import tell
from tests.support.worker import Work

SOME_TOKEN = "ghp_" + "a1B2" * 9


class Log:
    def __init__(self) -> None:
        self.stream = io.StringIO()

    @property
    def text(self) -> str:
        return self.stream.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def one(self, words: str) -> dict[str, Any]:
        [line] = [line for line in self.lines if words in line["event"]]
        return line


def written(form: str, *, level: str = "INFO") -> Iterator[Log]:
    """What the handler of the settings writes."""
    log, root = Log(), logging.getLogger()
    handler = logging.StreamHandler(log.stream)
    handler.setFormatter(logs.formatter(form=form))
    handler.addFilter(logs.QuietRq(talkative=level == "DEBUG"))
    root.addHandler(handler)
    before = logging.getLogger("docora").level
    logging.getLogger("docora").setLevel(level)
    yield log
    logging.getLogger("docora").setLevel(before)
    root.removeHandler(handler)


@pytest.fixture
def json_log() -> Iterator[Log]:
    yield from written("json")


@pytest.fixture
def pretty_log() -> Iterator[Log]:
    yield from written("pretty")


@pytest.fixture
def debug_log() -> Iterator[Log]:
    yield from written("json", level="DEBUG")


def test_a_line_is_one_json_object_with_its_facts_in_front(json_log: Log) -> None:
    with log_context.bound(job_id="deliver-7", app="app_1"):
        logging.getLogger("docora.delivery").warning("%s told\nin two lines", "Alice", extra={"message_id": "msg_1"})
    [text] = json_log.text.splitlines()
    line = json.loads(text)
    assert list(line)[:4] == ["timestamp", "level", "logger", "event"]
    assert (line["level"], line["logger"]) == ("warning", "docora.delivery")
    assert line["event"] == "Alice told\nin two lines"
    assert (line["job_id"], line["app"], line["message_id"]) == ("deliver-7", "app_1", "msg_1")
    assert line["host"]
    assert line["pid"]
    assert line["timestamp"].endswith("Z")


@pytest.mark.parametrize("odd", ["half a pair \udc80", "\0", "ü", 2**70, object()], ids=range(5))
def test_what_no_json_has_a_word_for_is_still_one_line(odd: object) -> None:
    record = logging.makeLogRecord({"msg": "odd: %s", "args": (odd,), "odd": odd})
    [text] = logs.formatter(form="json").format(record).encode(errors="backslashreplace").splitlines()
    assert json.loads(text)["event"].startswith("odd: ")


def test_text_is_for_people(pretty_log: Log) -> None:
    with log_context.bound(job_id="deliver-7"):
        logging.getLogger("docora.delivery").warning("told")
    assert "told" in pretty_log.text
    assert "job_id=deliver-7" in pretty_log.text
    assert "\x1b" not in pretty_log.text, "no colours where nobody sees them"


@pytest.mark.parametrize("form", ["json", "pretty"])
def test_no_secret_is_in_a_line_or_in_its_traceback(form: str) -> None:
    bearer, password, header, variable = "docora_" + "0f" * 32, "hunter" + "2", "Yy" * 9, "only a " + "variable"
    for log in written(form):
        try:
            raise ValueError(f"{SOME_TOKEN} at https://user:{password}@host/x said Authorization: Basic {header}")
        except ValueError:
            logging.getLogger("docora.x").exception("called with %s and %s", bearer, SOME_TOKEN, extra={"t": bearer})
        assert "Traceback" in log.text
        assert [secret for secret in (SOME_TOKEN, bearer, password, header, variable) if secret in log.text] == []


def test_the_chatter_of_rq_is_debug(json_log: Log) -> None:
    chatter = logging.getLogger("rq.worker")
    before = chatter.level
    chatter.setLevel("INFO")  # as RQ's own command does it, whatever the settings say
    chatter.info("Job OK")
    chatter.warning("Worker gone")
    for log in written("json", level="DEBUG"):
        chatter.info("Job OK")
        assert [line["level"] for line in log.lines] == ["debug"]
    chatter.setLevel(before)
    assert [line["event"] for line in json_log.lines if line["level"] != "debug"] == ["Worker gone"]


@pytest.mark.parametrize(
    ("given", "kept"), [("abc-123", True), ("", False), ("x" * 200, False), ("a b", False), ("a\nb", False)]
)
def test_a_request_keeps_a_well_formed_id_and_gets_one_otherwise(client: Client, given: str, kept: bool) -> None:
    answer = client.get("/health", headers={"X-Request-ID": given})
    assert (answer["X-Request-ID"] == given) is kept
    assert answer["X-Request-ID"]
    assert client.get("/nowhere")["X-Request-ID"] != answer["X-Request-ID"]
    assert log_context.request_id() == "", "nothing of a request stays behind in its thread"


@pytest.mark.django_db(transaction=True)
@pytest.mark.any_database
class TestWork:
    def test_a_job_says_for_which_request_it_works(self) -> None:
        with log_context.bound(request_id="req-1"):
            messages.take_snapshot(404, planned=False)
        [job] = queue.named(queue.SNAPSHOTS).get_jobs()
        assert job.meta == {"request_id": "req-1"}

    def test_an_id_that_somebody_else_wrote_to_redis_is_not_believed(
        self, json_log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def note(*_: object) -> None:
            logging.getLogger("docora.x").warning("inside")

        monkeypatch.setattr(Job, "perform", note)
        for odd in ("a\nb", 5, None, "fine-1"):
            messages.take_snapshot(404, planned=False)
            [job] = queue.named(queue.SNAPSHOTS).get_jobs()
            job.meta = {"request_id": odd}
            Worker([queue.named(queue.SNAPSHOTS)], connection=queue.connection()).perform_job(
                job, queue.named(queue.SNAPSHOTS)
            )
            assert log_context.request_id() == "", "nothing of a job stays behind in its process"
            queue.connection().flushall()
        seen = [line for line in json_log.lines if line["event"] == "inside"]
        assert [line.get("request_id") for line in seen] == [None, None, None, "fine-1"]
        assert {line["job_id"] for line in seen} == {"snapshot-404"}

    def test_what_fails_is_said_with_app_repository_and_message(
        self, json_log: Log, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        remote.commit({"README.md": "# Changed\n"})
        look.take_snapshot(watch.repository_id, job_id="look")
        with alice.faults.put(ReceiverFault(status=503)):
            work()
        line = json_log.one("failed (attempt 1)")
        assert (line["app"], line["repository"]) == (watch.app.public_id, watch.repository.public_id)
        assert line["message_id"] == watch.deliveries.get(status=503).message_id
        assert (line["level"], line["logger"]) == ("warning", "docora.delivery")

    def test_a_look_that_fails_is_said_with_its_repository(self, json_log: Log, watch: Watch, settings: Any) -> None:
        settings.GIT_HOSTS = ()
        look.take_snapshot(watch.repository_id, job_id="look")
        line = json_log.one("Circuit of acme/handbook opened")
        assert line["repository"] == watch.repository.public_id

    def test_a_run_without_faults_logs_no_line_for_each_message(
        self, json_log: Log, watch: Watch, remote: HostedRepository, work: Work
    ) -> None:
        remote.commit({f"docs/{number}.md": "text\n" for number in range(50)})
        before = len(json_log.lines)
        look.take_snapshot(watch.repository_id, job_id="look")
        work()
        assert len(json_log.lines) - before <= 2

    def test_a_refused_file_is_said_at_debug_with_its_message(
        self, debug_log: Log, watch: Watch, alice: Receiver, remote: HostedRepository, work: Work
    ) -> None:
        remote.commit({"README.md": "# Refused\n"})
        look.take_snapshot(watch.repository_id, job_id="look")
        with alice.faults.put(ReceiverFault(status=422)):
            work()
        line = debug_log.one("Refused README.md")
        assert line["level"] == "debug"
        assert line["message_id"].startswith("msg_")

    def test_contention_of_the_lock_is_a_warning_with_the_holder(self, json_log: Log, watch: Watch) -> None:
        key = f"delivery:{watch.app_id}:{watch.repository_id}"
        Watch.objects.update(synced_sequence=0)
        with repo_lock(key, job_id="the-holder"):
            tell.deliver(watch.pk, job_id="the-other")
        line = json_log.one("did not wait for lock")
        assert (line["level"], line["logger"]) == ("warning", "docora.repo_lock")
        assert "held by job the-holder" in line["event"]
        assert line["app"] == watch.app.public_id
