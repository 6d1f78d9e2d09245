"""A neighbour in Redis: what a message, a callback or a pickle in it can start, and what it cannot."""

import ast
import json
import logging
import pickle
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from django.test import Client
from django.utils.module_loading import import_string
from django_rq.jobs import get_job_class
from rq import Worker
from rq.job import Job
from rq.serializers import JSONSerializer, resolve_serializer

from docora import settings as product
from repositories.base import queue
from repositories.base.listed_job import JobRefused, ListedJob
from repositories.git import clones
from repositories.jobs import recheck_owner
from repositories.models import Repository
from snapshots import jobs
from tests.support.service import ROOT
from tests.support.worker import run_jobs

pytestmark = pytest.mark.any_database

WRITE = "pathlib.Path.touch"


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """A file that is there when code has run."""
    return tmp_path / "code has run"


def plant(data: list[Any], **fields: object) -> None:
    """What somebody else writes to Redis by hand."""
    connection = queue.connection()
    packed = zlib.compress(json.dumps(data).encode())
    facts: dict[Any, Any] = {"created_at": "2026-01-01T00:00:00.000000Z", "data": packed, "status": "queued", **fields}
    facts |= {"origin": queue.SNAPSHOTS, "enqueued_at": facts["created_at"]}
    connection.hset("rq:job:planted", mapping=facts)
    connection.sadd("rq:queues", f"rq:queue:{queue.SNAPSHOTS}")
    connection.rpush(f"rq:queue:{queue.SNAPSHOTS}", "planted")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(["os.mkdir", None, ["{marker}"], {}], id="a function"),
        pytest.param(["builtins.open", None, ["{marker}", "w"], {}], id="a builtin"),
        pytest.param(["snapshots.jobs.look.log.root.handlers", None, [], {}], id="through a module of ours"),
        pytest.param(["format", "{marker}", [], {}], id="a method"),
        pytest.param(["builtins.abs", "{marker}", [], {}], id="a method with a listed name"),
        pytest.param([["os.mkdir"], None, ["{marker}"], {}], id="no name at all"),
    ],
)
def test_only_listed_functions_are_called(
    data: list[Any], marker: Path, caplog: pytest.LogCaptureFixture, db: None
) -> None:
    plant(json.loads(json.dumps(data).replace("{marker}", str(marker))))
    with pytest.raises(JobRefused):
        run_jobs()
    assert not marker.exists()
    [record] = [record for record in caplog.records if record.name == "docora.queue"]
    assert record.levelno == logging.ERROR
    assert "planted" in record.getMessage()


@pytest.mark.parametrize("data", [["builtins.abs", None, [-1], {}], ["builtins.abs", None, ["x"], {}]])
def test_no_callback_is_called(
    data: list[Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, db: None
) -> None:
    called: list[str] = []

    def imported(name: str) -> Callable[..., Any]:
        called.append(name)
        return abs

    monkeypatch.setattr("rq.job.import_attribute", imported)
    callback = "tests.repositories.base.test_listed_job.callback"
    plant(data, success_callback_name=callback, failure_callback_name=callback, stopped_callback_name=callback)
    try:
        run_jobs()
    except TypeError:
        assert data[2] == ["x"]
    job = ListedJob.fetch("planted", connection=queue.connection(), serializer=JSONSerializer)
    job.execute_stopped_callback(Worker.death_penalty_class)
    assert set(called) == {"builtins.abs"}
    assert callback in caplog.text


@pytest.fixture
def abandoned(fake_redis: redis.Redis) -> Iterator[None]:
    """A job that seems to run, is long overdue, and has a pickle for its description of itself."""
    plant(["builtins.abs", None, [-1], {}], failure_callback_name="os.abort", meta=pickle.dumps(Fuse()))
    queue.connection().zadd(f"rq:wip:{queue.SNAPSHOTS}", {"planted:execution": time.time() - 1000})
    Fuse.lit = False
    yield
    assert not Fuse.lit


class Fuse:
    """Unpickling it is noticed."""

    lit = False

    def __reduce__(self) -> tuple[Any, ...]:
        return light, ()


def light() -> None:
    Fuse.lit = True


@pytest.mark.usefixtures("abandoned")
@pytest.mark.parametrize("page", ["", "?state=waiting", "?state=running", "jobs/planted/"])
def test_looking_at_the_queue_in_the_admin_runs_nothing(page: str, admin_client: Client) -> None:
    answer = admin_client.get(f"/admin/django_rq/dashboard/{page}")
    assert answer.status_code == 200


def test_rq_itself_unpickles_nothing_and_calls_nobody_back(db: None) -> None:
    plant(["builtins.abs", None, [-1], {}], failure_callback_name="os.abort")
    assert Job.fetch("planted", connection=queue.connection()).failure_callback is None
    with pytest.raises(ValueError, match="codec"):
        resolve_serializer(None).loads(pickle.dumps({}))


def test_every_worker_uses_the_list(fake_redis: redis.Redis) -> None:
    worker_class = import_string(django_settings.RQ["WORKER_CLASS"])
    assert worker_class.job_class is ListedJob
    assert get_job_class() is ListedJob, "what django-rq gives to workers and their queues"
    assert {queue.named(name).job_class for name in queue.ALL} == {ListedJob}


def test_the_list_is_all_that_docora_queues() -> None:
    queued = set()
    for path in (ROOT / room for room in ("docora", "repositories", "snapshots")):
        for module in path.rglob("*.py"):
            queued |= set(_names_in(module))
    old = {"snapshots.jobs.purge_clone"}
    assert queued | old == set(product.JOB_FUNCTIONS)
    for name in product.JOB_FUNCTIONS:
        assert callable(import_string(name))


def _names_in(module: Path) -> Iterator[str]:
    """The dotted names among the arguments of `queue.enqueue`, and of `_announce`, which adds the module."""
    tree = ast.parse(module.read_text())
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = [constants.get(arg.id, arg) if isinstance(arg, ast.Name) else arg for arg in call.args]
        texts = [arg.value for arg in given if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        if name in {"enqueue", "enqueue_now"}:
            yield from texts
        elif name == "_announce":
            yield f"snapshots.jobs.{texts[0]}"


@pytest.mark.django_db
@pytest.mark.parametrize("key", ["../..", "..", ".", "", "/", "owner/../..", "@x/..", "owner/name/objects"])
def test_a_clone_key_that_leads_elsewhere_removes_nothing(key: str, settings: Any, tmp_path: Path) -> None:
    settings.REPOS_BASE_PATH = tmp_path / "data" / "repos"
    precious = settings.REPOS_BASE_PATH / "owner" / "name" / "objects"
    precious.mkdir(parents=True)
    with pytest.raises(ValueError, match="not the key of a clone"):
        jobs.purge_clone(key)
    assert precious.exists()
    assert not any(path.name == ".trash" for path in tmp_path.rglob("*"))


@pytest.mark.django_db
@pytest.mark.parametrize(
    "job",
    [
        jobs.take_snapshot,
        jobs.deliver,
        jobs.announce_failure,
        jobs.announce_recovery,
        jobs.announce_refusal,
        jobs.send_complete,
        jobs.resume_app,
        jobs.mail_disabled,
        lambda wrong: jobs.send_notice(("failure", wrong)),
    ],
)
@pytest.mark.parametrize("wrong", ["x", "1 OR 1=1", [1], {"pk": 1}])
def test_an_id_is_a_number(job: Any, wrong: object, fake_redis: redis.Redis) -> None:
    before = Repository.objects.count()
    with pytest.raises((ValueError, TypeError)):
        job(wrong)
    assert Repository.objects.count() == before


@pytest.mark.parametrize("wrong", [1, ["acme"], {"name": "acme"}, None])
def test_an_owner_is_a_name(wrong: Any, db: None) -> None:
    with pytest.raises(ValueError, match="not the name of an owner"):
        recheck_owner(wrong)


def test_a_bulk_run_has_an_id_of_ours() -> None:
    run = import_string("docora.console.bulk.run")
    with pytest.raises(ValueError, match="not the id of a run"):
        run("x:left\r\n")
    with pytest.raises(TypeError):
        run(["x"])


def test_a_folder_that_is_no_clone_is_left_alone(settings: Any, tmp_path: Path) -> None:
    settings.REPOS_BASE_PATH = tmp_path
    for name in ("owner/name", "lost+found/x", "owner/it is mine"):
        (tmp_path / name).mkdir(parents=True)
    assert clones.keys_on_disk() == ["owner/name"]
