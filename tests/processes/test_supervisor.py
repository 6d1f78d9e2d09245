"""The parts of the supervisor that need no whole service."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
import redis
from pytest_django import Settings
from rq import Queue
from rq.executions import Execution
from rq.scheduler import RQScheduler
from rq.serializers import JSONSerializer

from docora.processes import children, interrupted, leftovers, parent_death, preflight
from docora.processes import valkey as embedded
from docora.processes.children import Child
from docora.processes.mark import MARK
from docora.processes.preflight import StartError
from docora.processes.signals import StopRequests
from repositories.repo_lock import lock_status, repo_lock
from tests.support.service import wait_until

NOBODY = 65534
# Of these tests alone: processes are killed by their mark, and others may run the same tests at the same time.
RUN = f"run-{secrets.token_hex(4)}"


def make_child(
    tmp_path: Path,
    main: Callable[[str], object] = lambda _mark: None,
    leave_supervisor: Callable[[], object] = lambda: None,
) -> Child:
    return Child(name="web", run=RUN, log=tmp_path / "web.log", main=main, leave_supervisor=leave_supervisor)


def wait_for(child: Child) -> None:
    """Asks, and does not join: to join is to wait for its forks as well, which outlive it in some tests."""
    process = child.process
    assert process is not None
    wait_until(lambda: not process.is_alive(), "it ends", patience=20)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_the_pause_before_a_restart_doubles_up_to_a_minute(tmp_path: Path) -> None:
    child = make_child(tmp_path)
    child.started_at = time.monotonic()
    assert [child.plan_next_start() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_pause_starts_over_for_a_child_that_lived_for_a_minute(tmp_path: Path) -> None:
    child = make_child(tmp_path)
    child.started_at = time.monotonic()
    child.plan_next_start()
    child.plan_next_start()
    child.started_at = time.monotonic() - children.STEADY_AFTER
    assert child.plan_next_start() == 1


def test_a_log_that_grows_is_kept_twice_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "LOG_LIMIT", 10)
    child = make_child(tmp_path)
    for text in ("first line, long", "second line, long", "short"):
        with child.log.open("a") as log:
            log.write(text)
        child.keep_log_bounded()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "web.log": "short",
        "web.log.1": "second line, long",
    }


@pytest.mark.slow
def test_a_child_writes_to_its_log_and_tells_how_it_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def greet_and_die(mark: str) -> None:
        print("hello", mark)
        subprocess.run(["sh", "-c", "echo $DOCORA_PROCESS"], check=True)
        os.kill(os.getpid(), signal.SIGKILL)

    child = make_child(tmp_path, greet_and_die)
    with capfd.disabled():
        child.start()
    wait_for(child)
    assert child.log.read_text() == f"hello {RUN}.web.1\n{RUN}.web.1\n"
    assert child.has_just_ended()
    assert child.how_it_ended() == "was killed by SIGKILL"


@pytest.mark.slow
def test_an_error_in_a_child_is_in_its_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    child = make_child(tmp_path, lambda _mark: 1 // 0)
    with capfd.disabled():
        child.start()
    wait_for(child)
    assert "ZeroDivisionError" in child.log.read_text()
    assert child.how_it_ended() == "ended with status 1"


@pytest.mark.slow
def test_a_stop_that_comes_before_a_child_has_its_own_handlers_is_not_lost(tmp_path: Path) -> None:
    with StopRequests() as stop:

        def be_stopped_and_leave() -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            stop.close()

        child = make_child(tmp_path, lambda _mark: signal.pause(), be_stopped_and_leave)
        child.start()
        wait_for(child)
        assert child.how_it_ended() == "was killed by SIGTERM"
        assert stop.count == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_process_takes_its_forks_with_it_but_not_what_it_executed(tmp_path: Path) -> None:
    here, there = Pipe()

    def fork_and_execute(_mark: str) -> None:
        fork = get_context("fork").Process(target=signal.pause)
        fork.start()
        there.send((fork.pid, subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
        signal.pause()

    child = make_child(tmp_path, fork_and_execute)
    child.start()
    fork, program = here.recv()
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: not is_running(fork), "the fork ends", patience=10)
    assert is_running(program)
    leftovers.kill(child.mark)
    assert not is_running(program)


@pytest.mark.slow
def test_the_forks_of_a_dead_child_are_found_where_the_kernel_does_not_end_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent_death, "_prctl", None)
    here, there = Pipe()

    def fork_and_die(_mark: str) -> None:
        fork = get_context("fork").Process(target=signal.pause)
        fork.start()
        there.send(fork.pid)
        os.kill(os.getpid(), signal.SIGKILL)

    child = make_child(tmp_path, fork_and_die)
    child.start()
    orphan = here.recv()
    wait_for(child)
    assert is_running(orphan)
    leftovers.kill(child.mark, session=child.pid)
    assert not is_running(orphan)


def test_a_process_that_cannot_be_killed_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as a git that waits for a disk which does not answer."""
    monkeypatch.setattr(leftovers, "find", lambda *_, **__: [psutil.Process()])
    monkeypatch.setattr(leftovers, "_send", lambda *_: None)
    monkeypatch.setattr(leftovers, "_KILLED_WITHIN", 0.05)
    leftovers.kill("run")
    assert f"cannot be killed: {os.getpid()}" in caplog.text


@pytest.mark.parametrize(
    ("mark", "scope", "expected"),
    [
        ("run.web.1", "run", True),
        ("run.web.1", "run.web.1", True),
        ("run.web.11", "run.web.1", False),
        ("runner.web.1", "run", False),
        ("", "run", False),
    ],
)
def test_a_scope_holds_the_marks_that_begin_with_it(mark: str, scope: str, expected: bool) -> None:
    assert leftovers.is_within(mark, scope) is expected


@pytest.mark.slow
def test_a_grandchild_in_a_session_of_its_own_is_found_and_killed_after_its_parent_died() -> None:
    script = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, MARK: f"lost-{RUN}.web.1"}, check=True)
    assert [process.name() for process in leftovers.find(f"lost-{RUN}")] == ["sleep"]
    assert leftovers.find(f"lost-{RUN}", sparing=f"lost-{RUN}.web") == []
    leftovers.kill(f"lost-{RUN}")
    assert leftovers.find(f"lost-{RUN}") == []


@pytest.mark.slow
def test_what_does_not_end_when_asked_is_killed() -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"]
    environment = {**os.environ, MARK: f"stubborn-{RUN}.valkey.1"}
    with subprocess.Popen(stubborn, env=environment, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout
        process.stdout.readline()
        leftovers.end(f"stubborn-{RUN}.valkey", patience=0.5)
        assert process.wait() == -signal.SIGKILL


def test_two_signals_within_a_moment_are_one_request() -> None:
    with StopRequests() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        stop.wait(5)
        assert stop.count == 1


def test_a_signal_ends_the_wait() -> None:
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        began = time.monotonic()
        stop.wait(30)
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("version", ["git version 2.36.9", "git version 1.8.3.1", "nonsense"])
def test_an_old_git_is_named(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\necho {version}\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(StartError, match=rf"{version} is too old: Docora needs git 2\.37 or newer"):
        preflight.check_git()


def test_the_installed_git_will_do() -> None:
    preflight.check_git()


@pytest.fixture
def read_only_directory(tmp_path: Path) -> Iterator[Path]:
    """Also for root, who may write everywhere and is nobody for the moment."""
    tmp_path.chmod(0o500)
    user = os.geteuid()
    os.seteuid(user or NOBODY)
    try:
        yield tmp_path
    finally:
        os.seteuid(user)


def test_a_read_only_directory_is_named(read_only_directory: Path) -> None:
    with pytest.raises(StartError, match=r"DOCORA_DATA_DIR: cannot write to .*: Permission denied"):
        preflight.check_writable(read_only_directory, "DOCORA_DATA_DIR")


def test_a_place_where_no_directory_can_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match=r"DOCORA_DATA_DIR: cannot write to .*/file/data: Not a directory"):
        preflight.check_writable(tmp_path / "file" / "data", "DOCORA_DATA_DIR")


def test_the_data_is_held_once_and_free_again_afterwards(tmp_path: Path) -> None:
    with preflight.only_one(tmp_path, "first") as earlier:
        assert earlier is None
        complaint = rf"already running on .* \(process {os.getpid()}\)"
        with pytest.raises(StartError, match=complaint), preflight.only_one(tmp_path, "second"):
            pass
    with preflight.only_one(tmp_path, "third") as earlier:
        assert earlier is None


@pytest.mark.slow
def test_what_a_killed_supervisor_left_is_ended_and_its_run_remembered(tmp_path: Path) -> None:
    (tmp_path / "up.lock").write_text("4711 killed\n")
    orphans = [
        subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: mark}, start_new_session=True)
        for mark in ("killed", "killed.snapshots-1.1", "killed.valkey.1")
    ]
    with preflight.only_one(tmp_path, "next") as earlier:
        assert earlier == "killed"
    # Valkey writes what it has.
    assert [orphan.wait(10) for orphan in orphans] == [-signal.SIGKILL, -signal.SIGKILL, -signal.SIGTERM]


def jobs_on(connection: redis.Redis) -> Queue:
    return Queue("snapshots", connection=connection, serializer=JSONSerializer)


def run_by(worker: str, queue: Queue, job_id: str) -> None:
    """What Redis holds while a worker is running a job."""
    job = queue.enqueue("time.sleep", 0, job_id=job_id)
    queue.remove(job)
    with queue.connection.pipeline() as pipeline:
        Execution.create(job, ttl=60, pipeline=pipeline, worker_name=worker)
        job.prepare_for_execution(worker, pipeline=pipeline)
        pipeline.execute()


@pytest.mark.slow
def test_the_jobs_of_dead_workers_go_back_to_the_front_of_their_queue(valkey: redis.Redis) -> None:
    queue = jobs_on(valkey)
    run_by("dead.snapshots-1.1", queue, "interrupted")
    run_by("alive.snapshots-1.1", queue, "going-on")
    queue.enqueue("time.sleep", 0, job_id="waiting")
    assert interrupted.put_back("dead", valkey) == ["interrupted"]
    assert queue.job_ids == ["interrupted", "waiting"]
    assert queue.started_job_registry.get_job_ids() == ["going-on"]
    assert queue.failed_job_registry.count == 0
    job = queue.fetch_job("interrupted")
    assert job is not None
    assert (job.get_status(), job.started_at) == ("queued", None)
    assert interrupted.put_back("dead", valkey) == []


def hold_for_ever(job_id: str, held: Connection) -> None:
    with repo_lock("acme/handbook", job_id=job_id):
        held.send(True)
        signal.pause()


@pytest.mark.slow
def test_the_lock_of_a_killed_job_is_free_at_once(valkey: redis.Redis, settings: Settings, tmp_path: Path) -> None:
    settings.REPOS_BASE_PATH = tmp_path
    run_by("dead.snapshots-1.1", jobs_on(valkey), "interrupted")
    here, there = Pipe()
    horse = get_context("fork").Process(target=hold_for_ever, args=("interrupted", there))
    horse.start()
    assert here.recv()
    horse.kill()
    horse.join()
    assert [status.holder.job_id for status in lock_status()] == ["interrupted"]
    interrupted.put_back("dead", valkey)
    assert lock_status() == []


def scheduler_on(connection: redis.Redis, name: str) -> Any:
    return RQScheduler(["snapshots"], connection=connection, name=name)


def schedule_for_ever(url: str, name: str) -> None:
    scheduler = scheduler_on(redis.Redis.from_url(url), name)
    scheduler.acquire_locks()
    scheduler.register_birth()
    signal.pause()


@pytest.mark.slow
def test_a_dead_scheduler_holds_up_no_other_and_a_living_one_is_left_alone(
    valkey: redis.Redis, settings: Settings
) -> None:
    process = get_context("fork").Process(target=schedule_for_ever, args=(settings.REDIS_URL, "theirs"))
    process.start()
    wait_until(lambda: bool(valkey.exists("rq:scheduler:theirs")), "the scheduler starts")
    ours = scheduler_on(valkey, "ours")
    interrupted.put_back("dead", valkey)
    assert ours.acquire_locks() == set()
    process.kill()
    process.join()
    interrupted.put_back("dead", valkey)
    assert ours.acquire_locks() == {"snapshots"}


@pytest.mark.slow
def test_a_job_that_was_taken_but_never_started_goes_back(valkey: redis.Redis) -> None:
    queue = jobs_on(valkey)
    queue.enqueue("time.sleep", 0, job_id="taken")
    valkey.lmove(queue.key, queue.intermediate_queue_key)
    valkey.rpush(queue.intermediate_queue_key, "forgotten")
    run_by("alive.snapshots-1.1", queue, "begun")
    valkey.rpush(queue.intermediate_queue_key, "begun")
    taken = interrupted.taken(valkey)
    assert taken == {"taken", "forgotten"}
    assert interrupted.put_back_taken((), valkey) == []
    assert interrupted.put_back_taken(taken, valkey) == ["taken"]
    assert queue.job_ids == ["taken"]
    assert queue.intermediate_queue.get_job_ids() == ["begun"]


@pytest.mark.slow
def test_a_valkey_that_outlived_its_supervisor_writes_what_it_has_and_ends(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket = data_dir / "v" / "s"
    (data_dir / "up.lock").write_text(f"4711 killed-{RUN}\n")
    monkeypatch.setenv(MARK, f"killed-{RUN}.valkey.1")
    first = embedded.start(socket)
    redis.Redis(unix_socket_path=str(socket)).set("kept", "yes")
    with preflight.only_one(data_dir, "next"):
        pass
    assert first.wait(timeout=10) == 0
    second = embedded.start(socket)
    assert redis.Redis(unix_socket_path=str(socket)).get("kept") == b"yes"
    second.terminate()
    second.wait(timeout=10)
