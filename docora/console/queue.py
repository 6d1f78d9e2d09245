"""The pages of the queue: its lines and workers, one job, and what an operator may do with jobs.

Not django-rq's own pages: the policy of our pages refuses their scripts, they do not fit a phone, and opening them runs
RQ's clean-up. Every role sees these pages. The permission to act is `django_rq.admin`; what acts is a POST, and is
logged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

import redis
from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST
from django.views.generic import RedirectView
from django_rq.models import Dashboard
from django_rq.urls import get_api_urlpatterns
from rq import Worker
from rq.exceptions import InvalidJobOperation, NoSuchJobError
from rq.job import Job
from rq.serializers import JSONSerializer

from docora.console import jobs
from docora.console.base import Fact, ThemedAdmin
from docora.console.display import NOTHING, ago, badge, code, due, plural, span
from docora.console.jobs import FAILED, LATER, LINES, WAITING, Line
from docora.console.operations import PlainForm
from repositories.base import queue
from repositories.base.listed_job import ListedJob

View = Callable[..., HttpResponse]
_PER_PAGE = 50


def _requeue(job: Job) -> None:
    queue.named(job.origin).failed_job_registry.requeue(job)


def _run_now(job: Job) -> None:
    queue.hurry(job.origin, job.id)


def _delete(job: Job) -> None:
    if jobs.line_of(job) is FAILED:
        job.delete()
    else:
        queue.drop(job.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """What may be done with a job that is in one of these lines."""

    label: str
    done: str
    icon: str
    lines: tuple[Line, ...]
    run: Callable[[Job], None]
    is_dangerous: bool = False
    explanation: str = ""


ACTS = {
    "requeue": Act(label="Requeue", done="requeued", icon="replay", lines=(FAILED,), run=_requeue),
    "run": Act(label="Run now", done="brought forward", icon="play_arrow", lines=(LATER,), run=_run_now),
    "delete": Act(
        label="Delete",
        done="deleted",
        icon="delete",
        lines=(WAITING, LATER, FAILED),
        run=_delete,
        is_dangerous=True,
        explanation="What such a job was to do is found again at the next look at its repository, or its app.",
    ),
}


@admin.register(Dashboard)
class QueueAdmin(ThemedAdmin):
    """At the address of django-rq's pages, which older bookmarks have."""

    def has_module_permission(self, request: HttpRequest) -> bool:
        return _may_look(request)

    def get_urls(self) -> list[URLPattern]:
        def page(route: str, view: View, name: str) -> URLPattern:
            return path(route, self.admin_site.admin_view(never_cache(_guarded(view))), name=name)

        numbers = get_api_urlpatterns(name_prefix="django_rq_")  # they have a login of their own
        for pattern in numbers:
            pattern.callback = _guarded(pattern.callback)
        home = RedirectView.as_view(pattern_name="admin:django_rq_dashboard_changelist")
        return [
            *numbers,
            page("", self._queues, "django_rq_dashboard_changelist"),
            page("jobs/<slug:job_id>/", self._job, "queue_job"),
            page("jobs/<slug:job_id>/<slug:verb>/", require_POST(self._act), "queue_act"),
            page("all/<slug:queue_name>/<slug:line_name>/<slug:verb>/", self._act_on_all, "queue_act_on_all"),
            path("<path:anything>", self.admin_site.admin_view(lambda request, anything: home(request))),
        ]

    def _page(self, request: HttpRequest, template: str, title: str, **context: Any) -> HttpResponse:
        context |= {**self.admin_site.each_context(request), "title": title, "may_act": _may_act(request)}
        return TemplateResponse(request, f"docora/console/{template}.html", context)

    def _queues(self, request: HttpRequest) -> HttpResponse:
        chosen_queue, line = request.GET.get("queue", ""), LINES.get(request.GET.get("state", ""))
        names = [chosen_queue] if chosen_queue in queue.ALL else list(queue.ALL)
        lines = [line] if line else list(LINES.values())
        number = int(request.GET["page"]) if request.GET.get("page", "").isdecimal() else 1
        return self._page(
            request,
            "queue",
            "Queue",
            queues=jobs.queues(),
            workers=_workers(),
            lists=[_list(name, each, number, alone=line is not None) for name in names for each in lines],
            is_chosen=line is not None,
        )

    def _job(self, request: HttpRequest, job_id: str) -> HttpResponse:
        job = queue.fetch(job_id)
        shown = next(jobs.show([job]), None) if job else None
        if job is None or shown is None:
            messages.info(request, f"Job {job_id} has ended.")
            return HttpResponseRedirect(_home())
        acts = [(verb, act) for verb, act in ACTS.items() if _may_act(request) and shown.line in act.lines]
        error = jobs.error_of(job) if _may_act(request) else ""
        return self._page(request, "job", shown.purpose, facts=_facts(job, shown), job=shown, acts=acts, error=error)

    def _act(self, request: HttpRequest, job_id: str, verb: str) -> HttpResponse:
        act, job = _act_named(verb), queue.fetch(job_id)
        if not _may_act(request):
            raise PermissionDenied
        if job is None or jobs.line_of(job) not in act.lines:
            messages.warning(request, f"{act.label}: job {job_id} has moved on.")
        elif _was_done(act, job):
            messages.success(request, f"Job {job_id} is {act.done}.")
            _log(request, job_id, act.label)
        return HttpResponseRedirect(_home())

    def _act_on_all(self, request: HttpRequest, queue_name: str, line_name: str, verb: str) -> HttpResponse:
        act, line = _act_named(verb), LINES.get(line_name)
        if queue_name not in queue.ALL or line is None or line not in act.lines:
            raise Http404("There is no such list of jobs.")
        if not _may_act(request):
            raise PermissionDenied
        found = jobs.ids_in(queue.named(queue_name), line)
        subject = f"{plural(len(found), 'job')} in {queue_name}, {line.label}"
        if request.method != "POST":
            context = {"operation": act, "row": subject, "form": PlainForm(), "back": _home()}
            return self._page(request, "operation", f"{act.label} all", **context)
        done = sum(_was_done(act, job) for job in jobs.fetch_many(found) if jobs.line_of(job) in act.lines)
        messages.success(request, f"{plural(done, 'job')} in {queue_name} {'is' if done == 1 else 'are'} {act.done}.")
        _log(request, subject, f"{act.label} all")
        return HttpResponseRedirect(_home())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobList:
    queue: str
    line: Line
    count: int
    jobs: list[jobs.ShownJob]
    page: int
    is_alone: bool

    @property
    def verbs(self) -> list[tuple[str, str]]:
        return [(verb, act.label) for verb, act in ACTS.items() if self.line in act.lines]

    @property
    def pages(self) -> int:
        return -(-self.count // _PER_PAGE)


def _list(name: str, line: Line, page: int, *, alone: bool) -> JobList:
    """A whole page of the line that was chosen; of each line the first few where none was."""
    each, length = queue.named(name), _PER_PAGE if alone else 5
    start = (max(1, page) - 1) * length if alone else 0
    shown = list(jobs.show(jobs.fetch_many(jobs.ids_in(each, line, start, length))))
    count = jobs.count_in(each, line)
    return JobList(queue=name, line=line, count=count, jobs=shown, page=max(1, page), is_alone=alone)


def _workers() -> list[dict[str, object]]:
    found = Worker.all(connection=queue.connection(), job_class=ListedJob, serializer=JSONSerializer)
    return [
        {
            "name": worker.name,
            "host": f"{worker.hostname or NOTHING}, process {worker.pid or NOTHING}",
            "queues": ", ".join(worker.queue_names()),
            "state": badge(worker.get_state(), "busy" if worker.get_state() == "busy" else "good"),
            "job": worker.get_current_job_id(),
            "done": worker.successful_job_count,
            "heard": ago(worker.last_heartbeat),
        }
        for worker in sorted(found, key=lambda worker: worker.name)
    ]


def _facts(job: Job, shown: jobs.ShownJob) -> list[Fact]:
    facts: list[Fact] = [
        ("State", badge(shown.line.label, shown.line.tone)),
        ("Reason", shown.reason or NOTHING),
        ("For", shown.subject),
        ("Queue", shown.queue),
        ("Runs", due(jobs.runs_at(job)) if shown.line is LATER else NOTHING),
        ("Queued", ago(job.enqueued_at)),
        ("Started", ago(job.started_at)),
        ("Ended", ago(job.ended_at)),
        ("May take", span(jobs.time_limit(job))),
        ("Job id", code(job.id)),
    ]
    return [(name, value) for name, value in facts if value != NOTHING]


def _act_named(verb: str) -> Act:
    if verb not in ACTS:
        raise Http404("A job has no such button.")
    return ACTS[verb]


def _was_done(act: Act, job: Job) -> bool:
    """False if a worker was quicker."""
    try:
        act.run(job)
    except (InvalidJobOperation, NoSuchJobError):
        return False
    return True


def _home() -> str:
    return reverse("admin:django_rq_dashboard_changelist")


def _may_look(request: HttpRequest) -> bool:
    """Everybody with a role; django-rq has no permission for it."""
    return request.user.has_perm("repositories.view_watch")


def _may_act(request: HttpRequest) -> bool:
    return request.user.has_perm("django_rq.admin")


def _guarded(view: View) -> View:
    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated and not _may_look(request):
            raise PermissionDenied
        try:
            return view(request, *args, **kwargs)
        except redis.RedisError:
            context = {**admin.site.each_context(request), "title": "Queue", "is_away": True}
            return TemplateResponse(request, "docora/console/queue.html", context, status=503)

    return guarded


def _log(request: HttpRequest, subject: str, action: str) -> None:
    LogEntry.objects.create(
        user_id=request.user.pk or 0,
        content_type=ContentType.objects.get_for_model(Dashboard),
        object_repr=f"Queue: {subject}"[:200],
        action_flag=CHANGE,
        change_message=action,
    )
