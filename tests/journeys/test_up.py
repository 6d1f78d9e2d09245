"""`manage.py up`: starts, serves, survives, stops, and loses nothing."""

import json
import os
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import redis
from rq import Queue
from rq.job import Job
from rq.serializers import JSONSerializer

from docora.processes import valkey
from tests.support.service import Service, wait_for_disk, wait_until

pytestmark = pytest.mark.slow
# One worker of pytest-xdist runs them all, so that `running` is started once.
shares_the_service = pytest.mark.xdist_group("up")


def pid_of(service: Service, name: str) -> int | None:
    """The process that the supervisor runs under this name now."""
    assert service.process is not None
    children = psutil.Process(service.process.pid).children()
    return next((process.pid for process in children if _name(process).startswith(name)), None)


def kill(service: Service, name: str) -> None:
    pid = pid_of(service, name)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid_of(service, name) not in (pid, None), f"{name} is started again")
    if name == "valkey":
        wait_until(lambda: answers(service.redis()), "it listens")


def answers(server: redis.Redis) -> bool:
    with suppress(redis.RedisError):
        return bool(server.ping())
    return False


def kill_the_supervisor(service: Service) -> None:
    assert service.process is not None
    service.process.kill()
    service.process.wait()


def get(service: Service, path: str) -> dict[str, object]:
    with urllib.request.urlopen(service.url + path, timeout=20) as answer:  # noqa: S310  our own server
        return dict(json.load(answer))


def snapshots(connection: redis.Redis) -> Queue:
    return Queue("snapshots", connection=connection, serializer=JSONSerializer)


def enqueue_a_child_process(service: Service, *command: str) -> Job:
    """A job that waits for a child in a session of its own, as git is started."""
    queue = snapshots(service.redis())
    job = queue.enqueue("subprocess.check_output", args=(list(command),), kwargs={"start_new_session": True})
    wait_until(lambda: bool(find_command(service, command)), "the job starts")
    return job


def find_command(service: Service, command: tuple[str, ...]) -> list[psutil.Process]:
    return [process for process in service.processes() if _command(process) == list(command)]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@contextmanager
def queue_at_rest(service: Service) -> Iterator[Queue]:
    """What the stopped service has written of its queue."""
    unix_socket = service.data / "valkey" / "valkey.sock"
    server = valkey.start(unix_socket)
    try:
        yield snapshots(service.redis())
    finally:
        server.terminate()
        server.wait()


def assert_is_put_back(job: Job, queue: Queue) -> None:
    assert queue.job_ids == [job.id]
    assert job.get_status() == "queued"
    assert queue.started_job_registry.count == queue.failed_job_registry.count == 0


def refuses(service: Service, *options: str) -> str:
    """The one line with which the start fails."""
    before = len(service.output)
    assert service.launch(*options).wait(timeout=60) == 1
    printed = service.output[before:].splitlines()
    progress = [line for line in printed if line.startswith(("Docora ", "  bringing", "  starting"))]
    assert len(printed) == len(progress) + 1, printed
    assert printed[-1].startswith("docora: ")
    return printed[-1]


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    """One for all tests that end parts of it, but never all of it."""
    with Service() as service:
        yield service


def test_it_serves_and_says_where_things_are(service: Service) -> None:
    service.start_as_it_is()
    assert "bringing the database up to date" in service.output
    assert get(service, "/health")["status"] == "ok"
    for place in (f"{service.url}/admin/", f"{service.url}/api/v1/docs", f"{service.url}/health", "/logs", "Ctrl-C"):
        assert place in service.output


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how memory is shared")
def test_the_processes_share_their_memory_and_nothing_else_of_the_supervisor(sqlite_service: Service) -> None:
    for name in ("WEB_CONCURRENCY", "SCAN_CONCURRENCY", "DELIVERY_CONCURRENCY"):
        del sqlite_service.environment[name]
    sqlite_service.prepare().start_as_it_is()
    processes = sqlite_service.processes()
    assert len(processes) >= 18
    assert sum(map(_proportional_memory, processes)) < 350 << 20
    supervisor, worker = sqlite_service.process, pid_of(sqlite_service, "snapshots-1")
    assert supervisor is not None
    assert psutil.Process(supervisor.pid).num_threads() == 1, "it forks"
    kept = psutil.Process(worker)
    assert not [file.path for file in kept.open_files() if file.path.endswith("up.lock")]
    assert not [connection for connection in kept.net_connections() if connection.status == psutil.CONN_LISTEN]


def _proportional_memory(process: psutil.Process) -> int:
    """Its own, and its part of what it shares."""
    try:
        return int(process.memory_full_info().pss)
    except psutil.NoSuchProcess:
        return 0


@pytest.mark.any_database
def test_the_password_of_the_first_admin_is_in_its_file_and_in_no_log(service: Service) -> None:
    service.start()
    service.stop()
    service.start()
    password = service.first_password
    question = (
        f"from django.contrib.auth import authenticate; print(authenticate(username='admin', password='{password}'))"
    )
    assert service.manage("shell", "-v0", "-c", question).stdout.strip() == "admin"
    logs = list((service.data / "logs").iterdir())
    assert logs
    assert not [path for path in (*logs, service.output_path) if password in path.read_text(errors="replace")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_stop_leaves_nothing_running(sqlite_service: Service, number: signal.Signals) -> None:
    sqlite_service.start()
    assert sqlite_service.stop(number) == 0
    assert sqlite_service.processes() == []
    assert not (sqlite_service.data / "valkey" / "valkey.sock").exists()
    assert (sqlite_service.data / "up.lock").read_text() == ""


def test_a_stop_while_it_starts_leaves_nothing_running(sqlite_service: Service) -> None:
    sqlite_service.prepare().launch()
    wait_until(lambda: "starting valkey" in sqlite_service.output, "it is starting")
    assert sqlite_service.stop() == 0
    assert sqlite_service.processes() == []


@shares_the_service
def test_the_web_and_valkey_come_before_the_workers_where_the_processor_is_short(running: Service) -> None:
    def niceness(name: str) -> tuple[int, int]:
        """Of the process, and of its session where Linux shares the processor between sessions."""
        pid = pid_of(running, name)
        assert pid is not None
        group = Path(f"/proc/{pid}/autogroup")
        of_session = int(group.read_text().split()[-1]) if group.exists() else psutil.Process(pid).nice()
        return psutil.Process(pid).nice(), of_session

    first = [niceness(name) for name in ("web", "valkey")]
    workers = [niceness(name) for name in ("urgent", "snapshots", "deliveries-1", "deliveries-slow")]
    assert max(mine for mine, _ in first) < min(mine for mine, _ in workers)
    assert max(of_session for _, of_session in first) < min(of_session for _, of_session in workers)


@shares_the_service
def test_whatever_is_killed_is_started_again(running: Service) -> None:
    for name in ("web", "snapshots-1", "scheduler", "valkey"):
        kill(running, name)
        assert re.search(rf"^{name} was killed by SIGKILL; starting again in 1 s", running.output, re.M)
    assert get(running, "/health")["status"] == "ok"
    job = snapshots(running.redis()).enqueue("time.sleep", 0)
    wait_until(lambda: job.get_status() == "finished", "the workers find their way back to Valkey")


@shares_the_service
def test_the_queue_survives_a_killed_valkey(running: Service) -> None:
    connection = running.redis()
    waiting = Queue("nobody", connection=connection, serializer=JSONSerializer).enqueue("time.sleep", 0)
    wait_for_disk(connection)
    kill(running, "valkey")
    wait_until(lambda: valkey.answers(running.data / "valkey" / "valkey.sock"), "Valkey is back")
    assert waiting.get_status() == "queued"


@shares_the_service
def test_the_job_of_a_killed_worker_is_done_by_the_next_one(running: Service) -> None:
    command = ("sleep", "3.14159")
    job = enqueue_a_child_process(running, *command)
    (orphan,) = find_command(running, command)
    kill(running, "snapshots-1")
    assert not orphan.is_running() or orphan.status() == psutil.STATUS_ZOMBIE
    wait_until(lambda: job.get_status() == "finished", "the job is done again")
    assert f"put back on their queue: {job.id}" in running.output


def take_with_a_frozen_worker(service: Service) -> Job:
    """Valkey gives a job to a worker that waits for one, although the worker is frozen and cannot begin it."""
    queue, worker = snapshots(service.redis()), pid_of(service, "snapshots-1")
    assert worker is not None
    while True:
        os.kill(worker, signal.SIGSTOP)
        job = queue.enqueue("time.sleep", 0)
        if job.id in queue.intermediate_queue.get_job_ids():
            return job
        os.kill(worker, signal.SIGCONT)  # it did not wait at this moment
        wait_until(lambda job=job: job.get_status() == "finished", "the worker goes on")  # type: ignore[misc]


@shares_the_service
def test_a_job_that_a_killed_worker_had_taken_and_not_begun_waits_for_seconds_only(running: Service) -> None:
    job = take_with_a_frozen_worker(running)
    kill(running, "snapshots-1")
    wait_until(lambda: job.get_status() == "finished", "the job is done by the next worker", patience=30)
    assert f"put back on their queue: {job.id}" in running.output


@shares_the_service
def test_a_second_one_on_the_same_data_refuses_and_disturbs_nothing(running: Service) -> None:
    first = running.process
    assert first is not None
    try:
        assert f"already running on {running.data} (process {first.pid})" in refuses(running)
    finally:
        running.process = first
    assert get(running, "/health")["status"] == "ok"


def test_a_taken_port_is_named(sqlite_service: Service) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        line = refuses(sqlite_service, "--port", str(port))
    assert f"port {port} is taken by another program" in line
    assert "PORT=" in line
    assert sqlite_service.processes() == []


def test_a_missing_git_is_named(sqlite_service: Service, tmp_path: Path) -> None:
    sqlite_service.environment["PATH"] = str(tmp_path)
    assert "git is not installed" in refuses(sqlite_service)


def test_a_data_directory_that_cannot_be_written_is_named(sqlite_service: Service, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sqlite_service.environment["DOCORA_DATA_DIR"] = str(tmp_path / "file")
    assert "DOCORA_DATA_DIR: cannot" in refuses(sqlite_service)


def test_a_folder_of_clones_that_cannot_be_written_is_named(sqlite_service: Service, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sqlite_service.environment["REPOS_BASE_PATH"] = str(tmp_path / "file")
    assert "REPOS_BASE_PATH: cannot write to" in refuses(sqlite_service)


def test_an_unreachable_database_is_named(sqlite_service: Service) -> None:
    sqlite_service.environment["DATABASE_URL"] = "postgres://docora:hunter2@127.0.0.1:1/docora"
    line = refuses(sqlite_service)
    assert "the database cannot be reached, see DATABASE_URL" in line
    assert "hunter2" not in line


def test_an_unreachable_redis_is_named(sqlite_service: Service) -> None:
    sqlite_service.environment["REDIS_URL"] = "redis://:hunter2@127.0.0.1:1/0"
    line = refuses(sqlite_service)
    assert "the Redis server cannot be reached, see REDIS_URL" in line
    assert "hunter2" not in line


def test_a_valkey_that_does_not_start_is_named(sqlite_service: Service) -> None:
    (sqlite_service.data / "valkey").touch()
    assert "the embedded Valkey does not start" in refuses(sqlite_service.prepare())
    assert sqlite_service.processes() == []


def test_a_running_job_finishes_before_a_stop(sqlite_service: Service) -> None:
    sqlite_service.start()
    job = enqueue_a_child_process(sqlite_service, "sleep", "2.71828")
    assert sqlite_service.stop() == 0
    with queue_at_rest(sqlite_service):
        assert job.get_status() == "finished"


def test_a_job_that_outlasts_the_grace_is_put_back_and_done_after_the_next_start(sqlite_service: Service) -> None:
    sqlite_service.environment["DOCORA_STOP_GRACE"] = "1"
    sqlite_service.start()
    job = enqueue_a_child_process(sqlite_service, "sleep", "4.6692")
    assert sqlite_service.stop() == 0
    assert sqlite_service.processes() == []
    with queue_at_rest(sqlite_service) as queue:
        assert_is_put_back(job, queue)
    sqlite_service.start()
    wait_until(lambda: job.get_status() == "finished", "the job is done")


def test_a_given_redis_is_used_and_left_running(sqlite_service: Service, valkey_socket: Path) -> None:
    sqlite_service.environment["REDIS_URL"] = f"unix://{valkey_socket}"
    sqlite_service.redis().flushall()
    sqlite_service.environment["DOCORA_STOP_GRACE"] = "0"
    sqlite_service.start()
    job = enqueue_a_child_process(sqlite_service, "sleep", "60.6")
    assert not (sqlite_service.data / "valkey").exists()
    assert sqlite_service.stop() == 0
    assert sqlite_service.processes() == []
    assert_is_put_back(job, snapshots(sqlite_service.redis()))


def test_a_second_ctrl_c_does_not_wait_for_running_jobs(sqlite_service: Service) -> None:
    sqlite_service.environment["DOCORA_STOP_GRACE"] = "600"
    sqlite_service.start()
    job = enqueue_a_child_process(sqlite_service, "sleep", "600")
    assert sqlite_service.process is not None
    sqlite_service.process.send_signal(signal.SIGINT)
    wait_until(lambda: "waiting up to 600 s for the jobs" in sqlite_service.output, "it waits for the job")
    assert sqlite_service.stop() == 0
    assert sqlite_service.processes() == []
    with queue_at_rest(sqlite_service) as queue:
        assert_is_put_back(job, queue)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_supervisor_takes_all_but_a_running_git_with_it_and_the_next_start_does_its_jobs(
    sqlite_service: Service, tmp_path: Path
) -> None:
    sqlite_service.start()
    lasts_only_the_first_time = ("sh", "-c", f"test -e {tmp_path}/begun || {{ touch {tmp_path}/begun; sleep 600; }}")
    job = enqueue_a_child_process(sqlite_service, *lasts_only_the_first_time)
    kill_the_supervisor(sqlite_service)

    def only_the_jobs_own_child_is_left() -> bool:
        left = [_command(process) for process in sqlite_service.processes()]
        return sorted(left) == [list(lasts_only_the_first_time), ["sleep", "600"]]

    wait_until(only_the_jobs_own_child_is_left, "the kernel ends the others")
    orphans = sqlite_service.processes()
    sqlite_service.start()
    assert not [orphan for orphan in orphans if orphan.is_running() and orphan.status() != psutil.STATUS_ZOMBIE]
    wait_until(lambda: job.get_status() == "finished", "the job is done")


def test_the_help_says_how_to_stop(sqlite_service: Service) -> None:
    text = " ".join(sqlite_service.manage("up", "--help").stdout.split())
    assert "Ctrl-C" in text
    assert "--port" in text


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_port_that_cannot_be_is_refused(sqlite_service: Service, port: str) -> None:
    result = sqlite_service.manage("up", "--port", port, check=False)
    assert result.returncode == 2
    assert f"expected a number from 1 to 65535, got '{port}'" in result.stderr
    assert "Traceback" not in result.stderr
