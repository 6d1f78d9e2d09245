"""Imports once, before a process forks, what its forks need: they start at once and share that memory."""

import gc
from importlib import import_module

from django.apps import apps
from django.urls import reverse

# The jobs, and what Django and Python put off importing until they need it.
_JOBS = ("snapshots.jobs", "django.db.models.sql.compiler", "encodings.idna")
_WEB = ("docora.wsgi", "gunicorn.workers.gthread")
_COMMANDS = (
    "docora.management.commands.rqworker",
    "docora.management.commands.scheduler",
    "docora.processes.kept_horse.worker",
)


def for_jobs() -> None:
    for module in _JOBS:
        import_module(module)


def for_all() -> None:
    for_jobs()
    for module in (*_WEB, *_COMMANDS):
        import_module(module)
    reverse("admin:index")  # reads all URLs, and so imports all views
    for model in apps.get_models():
        # Written, not run: Django remembers what it finds out about a model at the first query, 2 MB in each fork.
        model._default_manager.filter(pk=0).query.sql_with_params()
    # A later collection would write to every object that it visits, and so copy the page in each fork.
    gc.collect()
    gc.freeze()
