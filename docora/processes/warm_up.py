"""Imports once, before a process forks, what its forks need: they start at once and share that memory."""

import gc
from importlib import import_module

import pycurl
from django.apps import apps
from django.db import connections
from django.db.models import F, Model
from django.urls import reverse
from rq.utils import now, utcformat, utcparse

from repositories.base import queue

# The jobs, and what Django and Python put off importing until they need it.
_JOBS = ("snapshots.jobs", "django.db.models.sql.compiler", "encodings.idna", "_strptime")
_WEB = ("docora.wsgi", "docora.processes.web")
_COMMANDS = (
    "docora.management.commands.rqworker",
    "docora.management.commands.scheduler",
    "docora.processes.kept_horse.worker",
)


def for_jobs() -> None:
    for module in _JOBS:
        import_module(module)


def for_children() -> None:
    """What the workers, the scheduler and the web have in common. Every work horse has all of it in its memory, so the
    web imports its own part itself."""
    for_jobs()
    for module in _COMMANDS:
        import_module(module)
    for model in apps.get_models():
        _write_queries(model)
    _use_libraries()
    _keep_shared()


def for_web() -> None:
    for module in _WEB:
        import_module(module)
    reverse("admin:index")  # reads all URLs, and so imports all views
    connections.close_all()  # the application has looked at the encryption keys
    _keep_shared()


def _write_queries(model: type[Model]) -> None:
    """Written, not run: Django remembers what it finds out about a model at the first query that needs it. In each fork
    that would be 2 MB and some milliseconds."""
    rows = model._default_manager.filter(pk=0)
    rows.query.sql_with_params()
    _ = model._meta.fields_map  # the names of those that refer to it
    for field in model._meta.concrete_fields:
        if field.is_relation:
            joined = rows.select_related(field.name).filter(**{f"{field.name}__pk__gt": F("pk")})
            joined.query.sql_with_params()


def _use_libraries() -> None:
    """What they make at their first use and keep takes a fork milliseconds. None of it is a thread or a connection."""
    pycurl.CurlMulti().close()
    utcparse(utcformat(now()))  # RQ's times: the pattern of their format
    queue.connection()  # the client, which connects when it is first asked


def _keep_shared() -> None:
    # A later collection would write to every object that it visits, and so copy the page in each fork.
    gc.collect()
    gc.freeze()
