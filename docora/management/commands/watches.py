"""`manage.py watches`: which app watches which repository, and how far it is."""

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

from django.db.models import F, QuerySet

from docora.console import states
from repositories import watch_state
from repositories.base.words import number
from repositories.management.command import OperatorCommand
from repositories.management.lookups import find_app, find_repository
from repositories.management.table import table
from repositories.models import Watch
from snapshots.acknowledged import count_acknowledged, count_parked
from snapshots.models import Snapshot

_COLUMNS = ("app", "repository id", "repository", "state", "files", "commit", "reason")
_BATCH = 500


class Command(OperatorCommand):
    help = (
        "List the watches: which app watches which repository, its state, how many files the app has acknowledged, how"
        " many the newest commit has, and the reason of the last failure."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--app", metavar="APP_ID", help="only those of this app")
        parser.add_argument("--repository", metavar="REPO_ID", help="only those of this repository")
        parser.add_argument("--failing", action="store_true", help="only those that are in a bad state")
        parser.add_argument("--json", action="store_true", help="print the list as JSON")

    def handle(self, **options: Any) -> None:
        facts = list(_facts(_chosen(options)))
        if options["json"]:
            self.stdout.write(json.dumps(facts, indent=2))
        elif facts:
            self.stdout.write(table(_COLUMNS, map(_row, facts)))
        else:
            self.stdout.write("No watch fails." if options["failing"] else "There are no watches.")


def _chosen(options: dict[str, Any]) -> QuerySet[Any]:
    watches = states.WATCH.annotated(Watch.objects.select_related("app", "repository"))
    watches = watches.order_by("app__name", "app", "pk")
    if options["app"]:
        watches = watches.filter(app=find_app(options["app"]))
    if options["repository"]:
        watches = watches.filter(repository=find_repository(options["repository"]))
    if options["failing"]:
        watches = watches.filter(state_name__in=[state.name for state in states.WATCH.all if state.tone == "bad"])
    return watches


def _facts(watches: QuerySet[Any]) -> Iterator[dict[str, Any]]:
    for start in range(0, watches.count(), _BATCH):
        yield from _facts_of(list(watches[start : start + _BATCH]))


def _facts_of(watches: list[Any]) -> Iterator[dict[str, Any]]:
    newest = Snapshot.objects.filter(
        repository__in={watch.repository_id for watch in watches}, sequence=F("repository__sequence")
    )
    files = dict(newest.values_list("repository", "files"))
    acknowledged, parked = count_acknowledged(watches), count_parked(watches)
    for watch in watches:
        code, reason = states.reason_of(watch)
        yield {
            "app_id": watch.app.public_id,
            "app": watch.app.name,
            "repository_id": watch.repository.public_id,
            "repository": str(watch.repository),
            "url": watch.repository.url,
            "branch": watch.repository.ref or None,
            "state": watch.state_name,
            "files": files.get(watch.repository_id, 0),
            "between_commits": watch_state.is_between_commits(watch),
            "acknowledged": acknowledged[watch.pk],
            "parked": parked.get(watch.pk, 0),
            "commit": watch.repository.commit_sha or None,
            "synced_commit": watch.synced_commit or None,
            "synced_at": watch.synced_at.isoformat(timespec="seconds") if watch.synced_at else None,
            "retry_at": watch.retry_at.isoformat(timespec="seconds") if watch.retry_at else None,
            "error_code": code or None,
            "error": reason or None,
        }


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    files = number(facts["acknowledged"])
    files += ", not all newest" if facts["between_commits"] else f" of {number(facts['files'])}"
    files += f", {number(facts['parked'])} parked" if facts["parked"] else ""
    state, commit = states.WATCH.named(facts["state"]).label, (facts["synced_commit"] or "")[:12]
    who = (facts["app_id"], facts["repository_id"], facts["repository"])
    return (*who, state, files, commit, facts["error"] or "")
