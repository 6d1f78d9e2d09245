"""The jobs of the queue, read from rq's registries: what each is for, where it stands, and why it failed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Model
from django.urls import reverse
from django.utils.safestring import SafeString
from rq import Queue
from rq.exceptions import DeserializationError, InvalidJobOperation, NoSuchJobError
from rq.job import Job, JobStatus
from rq.registry import BaseRegistry
from rq.results import Result
from rq.serializers import JSONSerializer

from docora.console.display import NOTHING, ago, due, link, page_link
from docora.console.states import Tone
from repositories.base import pulse, queue
from repositories.base.listed_job import ListedJob
from repositories.models import App, Repository, Watch


@dataclass(frozen=True, slots=True)
class Line:
    """One of the places where the jobs of a queue are."""

    name: str
    label: str
    tone: Tone


WAITING = Line("waiting", "waiting", "calm")
RUNNING = Line("running", "running", "busy")
LATER = Line("later", "later", "warn")
FAILED = Line("failed", "failed", "bad")
LINES = {line.name: line for line in (WAITING, RUNNING, LATER, FAILED)}
_OF_STATUS = {
    JobStatus.CREATED: WAITING,
    JobStatus.QUEUED: WAITING,
    JobStatus.DEFERRED: WAITING,
    JobStatus.STARTED: RUNNING,
    JobStatus.SCHEDULED: LATER,
    JobStatus.FAILED: FAILED,
    JobStatus.STOPPED: FAILED,
}

# Of each function that a message may start: what it does, and what its argument is the number of.
_PURPOSES: dict[str, tuple[str, type[Model] | None]] = {
    "take_snapshot": ("Look at a repository", Repository),
    "look_now": ("Look at a repository that was pushed to", Repository),
    "deliver": ("Deliver to an app", Watch),
    "send_notice": ("Send a notice", Watch),
    "send_complete": ("Tell an app that it has everything", Watch),
    "announce_failure": ("Tell apps of a failure", Repository),
    "announce_recovery": ("Tell apps of a recovery", Repository),
    "announce_refusal": ("Tell an app of its refused token", Watch),
    "resume_app": ("Deliver all that an app has missed", App),
    "mail_disabled": ("Write to a disabled app's contact", App),
    "recheck_owner": ("Ask what the GitHub App may read", None),
    "purge_clone": ("Delete a clone", None),
    "reconcile_all": ("Tidy up the clones", None),
    "measure": ("Measure", None),
    "run": ("An operation on many rows", None),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    id: str
    line: Line
    purpose: str
    subject: SafeString | str
    queue: str
    since: SafeString | str
    reason: str

    @property
    def url(self) -> str:
        return reverse("admin:queue_job", args=[self.id])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQueue:
    name: str
    counts: Sequence[tuple[Line, int]]
    oldest: SafeString | str
    workers: int

    @property
    def is_untended(self) -> bool:
        return not self.workers and any(count for line, count in self.counts if line is WAITING)


def queues() -> list[ShownQueue]:
    return [_shown_queue(queue.named(name)) for name in queue.ALL]


def _shown_queue(each: Queue) -> ShownQueue:
    first = each.get_jobs(0, 1)
    return ShownQueue(
        name=each.name,
        counts=[(line, count_in(each, line)) for line in LINES.values()],
        oldest=ago(_utc(first[0].enqueued_at)) if first else NOTHING,
        workers=pulse.count_workers(each.name),
    )


def count_in(each: Queue, line: Line) -> int:
    return each.count if line is WAITING else _registry(each, line).get_job_count(cleanup=False)


def ids_in(each: Queue, line: Line, start: int = 0, length: int = 10_000) -> list[str]:
    if line is WAITING:
        return each.get_job_ids(start, length)
    # Without the clean-up that rq does at every look: it would move jobs, and looking must change nothing.
    return _registry(each, line).get_job_ids(start, start + length - 1, desc=line is FAILED, cleanup=False)


def _registry(each: Queue, line: Line) -> BaseRegistry:
    registries: dict[Line, BaseRegistry] = {
        RUNNING: each.started_job_registry,
        LATER: each.scheduled_job_registry,
        FAILED: each.failed_job_registry,
    }
    return registries[line]


def fetch_many(job_ids: Iterable[str]) -> list[Job]:
    """The jobs that still exist."""
    found = ListedJob.fetch_many(list(job_ids), connection=queue.connection(), serializer=JSONSerializer)
    return [job for job in found if job is not None]


def line_of(job: Job) -> Line | None:
    """None: it has ended, and rq has not forgotten it yet."""
    try:
        return _OF_STATUS.get(job.get_status())
    except InvalidJobOperation:  # it has ended since it was fetched
        return None


def show(jobs: Iterable[Job]) -> Iterator[ShownJob]:
    jobs = list(jobs)
    subjects = _subjects(jobs)
    for job in jobs:
        if line := line_of(job):
            yield ShownJob(
                id=job.id,
                line=line,
                purpose=_purpose(job)[0],
                subject=subjects.get(job.id) or _own_subject(job),
                queue=job.origin,
                since=_since(job, line),
                reason=error_of(job).rpartition("\n")[2] if line is FAILED else "",
            )


def error_of(job: Job) -> str:
    """The traceback of a job that failed; its last line says why."""
    result = job.latest_result()
    return (result.exc_string or "").strip() if result and result.type == Result.Type.FAILED else ""


def runs_at(job: Job) -> datetime | None:
    try:
        return _utc(queue.named(job.origin).scheduled_job_registry.get_scheduled_time(job))
    except NoSuchJobError:  # it is not put off any more
        return None


def time_limit(job: Job) -> timedelta:
    return timedelta(seconds=float(job.timeout or 0))


def _since(job: Job, line: Line) -> SafeString | str:
    if line is LATER:
        return due(runs_at(job))
    return ago(_utc({RUNNING: job.started_at, FAILED: job.ended_at}.get(line) or job.enqueued_at))


def _call(job: Job) -> tuple[str, Any]:
    """The function's name and its argument; of a notice, which has its kind too, the number of the watch."""
    try:
        name, args = str(job.func_name or ""), job.args
    except DeserializationError:  # not written by Docora
        return "", None
    argument = args[0] if isinstance(args, list | tuple) and args else None
    return name, argument[1] if isinstance(argument, list) and len(argument) == 2 else argument


def _purpose(job: Job) -> tuple[str, type[Model] | None]:
    name = _call(job)[0].rpartition(".")[2]
    return _PURPOSES.get(name, (name.replace("_", " ").capitalize() or "Unknown", None))


def _subjects(jobs: Sequence[Job]) -> Mapping[str, SafeString]:
    """A link to what each job is for, with one query for each kind of thing."""
    wanted: dict[type[Model], dict[str, int]] = {}
    for job in jobs:
        model, key = _purpose(job)[1], _call(job)[1]
        if model and isinstance(key, int):
            wanted.setdefault(model, {})[job.id] = key
    links: dict[str, SafeString] = {}
    for model, keys in wanted.items():
        rows = model._default_manager.select_related(*(("app", "repository") if model is Watch else ()))
        found = rows.in_bulk(set(keys.values()))
        links |= {job_id: page_link(found[key]) for job_id, key in keys.items() if key in found}
    return links


def _own_subject(job: Job) -> SafeString | str:
    """What a job without a row in the database is for: the page of a bulk operation, or the name of clone or owner."""
    name, argument = _call(job)
    if name == "docora.console.bulk.run" and str(argument).isalnum():
        return link(reverse("admin:bulk", args=[argument]), "progress")
    return str(argument) if name.endswith((".purge_clone", ".recheck_owner")) else NOTHING


def _utc(moment: datetime | None) -> datetime | None:
    """rq's times have no zone in some versions; they are UTC."""
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment
