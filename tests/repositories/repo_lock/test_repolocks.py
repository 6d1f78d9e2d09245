"""The operator's view: who holds what, and how to free it."""

import json
import os
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from rq import Queue
from rq.job import JobStatus
from rq.serializers import JSONSerializer

from repositories.base import connections
from repositories.errors import Holder
from repositories.management.commands.repolocks import is_stale
from repositories.management.lock_errors import explaining_lock_errors
from repositories.repo_lock import LockLostError, LockTimeoutError, lock_status, repo_lock
from repositories.repo_lock._server import LockServer, Names, new_token

DEAD_PID = 2**22 + 1


def repolocks(*arguments: str) -> str:
    output = StringIO()
    call_command("repolocks", *arguments, stdout=output)
    return output.getvalue()


def hold(key: str, job_id: str, *, host: str | None = None, pid: int | None = None) -> None:
    """A lock of another process."""
    word, own_host, own_pid, _ = new_token(job_id).split(" ", 3)
    token = f"{word} {host or own_host} {pid or own_pid} {job_id}"
    LockServer(timeout=2).acquire(Names(key), token, ttl=60, wait=0)


def test_nothing_held_is_said_in_words() -> None:
    assert repolocks() == "No locks are held.\n"
    assert repolocks("--stale") == "No stale locks.\n"
    assert json.loads(repolocks("--json")) == []


def test_the_table_names_key_job_host_process_age_and_waiters() -> None:
    hold("acme/handbook", "37", host="worker-1", pid=4711)
    hold("acme/a-longer-name", "snapshot-12", host="worker-2", pid=1)
    assert [line.split() for line in repolocks().splitlines()] == [
        ["key", "job", "host", "pid", "age", "waiters"],
        ["acme/a-longer-name", "snapshot-12", "worker-2", "1", "0s", "0"],
        ["acme/handbook", "37", "worker-1", "4711", "0s", "0"],
    ]


def test_json_is_for_machines() -> None:
    hold("acme/handbook", "37", host="worker-1", pid=4711)
    (lock,) = json.loads(repolocks("--json"))
    assert lock["key"] == "acme/handbook"
    assert (lock["job"], lock["host"], lock["pid"], lock["waiters"]) == ("37", "worker-1", 4711, [])
    assert 0 <= lock["age"] < 60
    assert 0 < lock["expires_in"] <= 60
    assert lock["fence"] > 0


def test_release_asks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    hold("acme/handbook", "37", host="worker-1", pid=4711)
    monkeypatch.setattr("builtins.input", lambda prompt: "")
    with pytest.raises(CommandError, match="Nothing was released"):
        repolocks("--release", "acme/handbook")
    assert lock_status()
    monkeypatch.setattr("builtins.input", lambda prompt: "y")
    output = repolocks("--release", "acme/handbook")
    assert "Job 37 on worker-1 (process 4711) holds acme/handbook for" in output
    assert output.endswith("Released the lock on acme/handbook.\n")
    assert lock_status() == []


def test_release_with_yes_does_not_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    hold("acme/handbook", "37")
    monkeypatch.setattr("builtins.input", lambda prompt: pytest.fail("it asked"))
    assert repolocks("--release", "acme/handbook", "--yes") == "Released the lock on acme/handbook.\n"


def test_releasing_what_nobody_holds_is_said_in_words() -> None:
    with pytest.raises(CommandError, match="Nobody holds a lock on acme/handbook"):
        repolocks("--release", "acme/handbook", "--yes")


def test_a_lock_that_changes_hands_while_the_operator_thinks_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    hold("acme/handbook", "37")

    def think(prompt: str) -> str:
        LockServer(timeout=2).leave(Names("acme/handbook"), lock_status()[0].token)
        hold("acme/handbook", "38")
        return "y"

    monkeypatch.setattr("builtins.input", think)
    with pytest.raises(CommandError, match="changed hands"):
        repolocks("--release", "acme/handbook")
    assert lock_status()[0].holder.job_id == "38"


def test_on_this_host_a_holder_is_stale_if_its_process_is_gone() -> None:
    hold("acme/alive", "37", pid=os.getpid())
    hold("acme/dead", "38", pid=DEAD_PID)
    assert "acme/dead" in repolocks("--stale")
    assert "acme/alive" not in repolocks("--stale")


def test_on_another_host_a_holder_is_stale_if_the_queue_does_not_run_its_job() -> None:
    queue = Queue("snapshots", connection=connections.connect(), serializer=JSONSerializer)
    running, failed = (queue.enqueue_call("builtins.abs", args=(1,), job_id=name) for name in ("running", "failed"))
    running.set_status(JobStatus.STARTED)
    failed.set_status(JobStatus.FAILED)
    stale = {
        name: is_stale(Holder(job_id=name, host="elsewhere", pid=1, since=0))
        for name in ("running", "failed", "unknown")
    }
    assert stale == {"running": False, "failed": True, "unknown": True}


def test_a_command_that_cannot_get_a_lock_says_who_has_it_and_what_to_do() -> None:
    hold("acme/handbook", "37", host="worker-1", pid=4711)
    busy = repo_lock("acme/handbook", job_id="manage.py", wait=0)
    with pytest.raises(CommandError) as caught, explaining_lock_errors(), busy:
        pass
    text = str(caught.value)
    assert text.startswith("acme/handbook is in use: job 37 on worker-1 (process 4711) holds it since 20")
    assert "manage.py repolocks --release acme/handbook" in text


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (LockTimeoutError("acme/handbook", None, 1.0), "acme/handbook is in use: nobody could say by whom."),
        (LockLostError("acme/handbook"), "The lock on acme/handbook was lost, so the work was stopped."),
    ],
)
def test_other_lock_errors_are_sentences_too(error: Exception, start: str) -> None:
    with pytest.raises(CommandError) as caught, explaining_lock_errors():
        raise error
    assert str(caught.value).startswith(start)
