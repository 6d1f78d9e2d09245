"""A watch in sync without its journey: what one real journey has left is copied for every later test.

The first test of a process that asks for it, with these settings, has the real journey: watch, clone, snapshot,
delivery. Its clone, its rows, its counters, and what the git host and the receiver have noted are kept. The copies name
the git host and the app of their own test, and their times are as many seconds ago as after the journey.
"""

import copy
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import models, transaction
from django.utils import timezone

from docora.demo.githost import GitHost, GitRequest, HostedRepository
from docora.demo.mirror import Mirror
from docora.demo.receiver import ReceivedRequest, Receiver
from repositories import watches
from repositories.base import queue
from repositories.git import clones
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository, Watch
from snapshots.changes import Change, Event
from snapshots.delivery.payloads import iso
from snapshots.delivery.run import message_id
from snapshots.delivery.signing import Signer
from snapshots.models import Completion, Delivered, Delivery, File, FileVersion, Snapshot
from tests.support.worker import Work

_COUNTERS = "docora:metrics"
_OWN_TO_EACH_TEST = {"GIT_HOSTS", "REPOS_BASE_PATH", "REDIS_URL"}
# The look of the console. To print it, Django looks up every URL in it, which takes as long as the copy of a watch.
_NO_PART_OF_A_JOURNEY = {"UNFOLD"}
# A table comes after those that it refers to.
_TABLES: tuple[type[models.Model], ...] = (
    Repository,
    Watch,
    Snapshot,
    File,
    FileVersion,
    Delivered,
    Completion,
    Delivery,
)


@dataclass(frozen=True)
class Stage:
    """The cast that the watch is of."""

    app: App
    receiver: Receiver
    host: GitHost
    remote: HostedRepository

    def is_usual(self) -> bool:
        """Whether nothing has happened on it yet, the app wants no optional events, and nobody is about to fail."""
        happened = self.receiver.requests or self.host.requests or Repository.objects.exists()
        faults = [*self.receiver.faults._faults, *self.host.faults._faults]
        return not happened and not faults and not self.app.events


class PreparedWatch:
    """`on(stage)` gives the watch: by the real journey for the first time, as a copy afterwards."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left: dict[str, _Left] = {}

    def on(self, stage: Stage, work: Work) -> Watch:
        under, is_usual = _settings(), stage.is_usual()
        if is_usual and under in self._left:
            return self._left[under].copy_to(stage)
        made = watches.watch(stage.app, stage.remote.url)
        work()
        made.refresh_from_db()  # like a copy, it knows what the journey has left
        if is_usual:
            self._left[under] = _Left.of(stage, self._folder)
        return made


def _settings() -> str:
    """All that may be set otherwise in another test, and make another journey."""
    others = _OWN_TO_EACH_TEST | _NO_PART_OF_A_JOURNEY
    names = sorted(name for name in dir(settings) if name.isupper() and name not in others)
    return repr([(name, getattr(settings, name)) for name in names])


@dataclass(frozen=True)
class _Left:
    """What the journey has left."""

    at: datetime
    address: str
    app: int
    clone: Path
    rows: dict[type[models.Model], list[models.Model]]
    counters: dict[Any, Any]
    asked: list[GitRequest]
    received: list[ReceivedRequest]
    mirror: Mirror

    @classmethod
    def of(cls, stage: Stage, folder: Path) -> "_Left":
        clone = Path(tempfile.mkdtemp(dir=folder)) / "clone"
        shutil.copytree(clones.path_of(Repository.objects.get().clone_key), clone)
        return cls(
            at=timezone.now(),
            address=stage.host.address,
            app=stage.app.pk,
            clone=clone,
            rows={table: list(table._default_manager.order_by("pk")) for table in _TABLES},
            counters=queue.connection().hgetall(_COUNTERS),
            asked=copy.deepcopy(stage.host.requests),
            received=copy.deepcopy(stage.receiver.requests),
            mirror=copy.deepcopy(stage.receiver.mirror),
        )

    def copy_to(self, stage: Stage) -> Watch:
        # Whole milliseconds, as the times in a body have.
        later = timedelta(milliseconds=(timezone.now() - self.at) // timedelta(milliseconds=1))
        with transaction.atomic():
            made = self._insert_rows(stage, later)
        shutil.copytree(self.clone, clones.path_of(made.repository.clone_key))
        queue.connection().hset(_COUNTERS, mapping=self.counters)
        stage.host.requests += [replace(each, at=each.at + later.total_seconds()) for each in self.asked]
        ids = {delivery.path: delivery.message_id for delivery in made.deliveries.all()}
        stage.receiver.requests += [self._readdressed(each, stage, later, ids) for each in self.received]
        stage.receiver.mirror = copy.deepcopy(self.mirror)
        stage.receiver.mirror._acknowledged = set(ids.values())
        return made

    def _insert_rows(self, stage: Stage, later: timedelta) -> Watch:
        """With keys that the database gives, on PostgreSQL too: rows that come afterwards must not meet them."""
        inserted: dict[type[models.Model], dict[int, models.Model]] = {App: {self.app: stage.app}}
        for table, rows in self.rows.items():
            copies = [self._copied(row, stage, later, inserted) for row in rows]
            if table is Delivery:
                _name_messages(copies, inserted[FileVersion].values())
            table._default_manager.bulk_create(copies)
            inserted[table] = {row.pk: made for row, made in zip(rows, copies, strict=True)}
        [made] = inserted[Watch].values()
        assert isinstance(made, Watch)
        return made

    def _copied(
        self,
        row: models.Model,
        stage: Stage,
        later: timedelta,
        inserted: dict[type[models.Model], dict[int, models.Model]],
    ) -> models.Model:
        values: dict[str, Any] = {}
        for field in row._meta.concrete_fields:
            value = getattr(row, field.attname)
            if isinstance(field, models.ForeignKey):
                values[field.name] = inserted[field.related_model][value]
            elif isinstance(value, datetime):
                values[field.name] = value + later
            elif not field.primary_key:
                values[field.name] = value
        if isinstance(row, Repository):
            remote = RemoteUrl.parse(stage.remote.url)
            values |= {"url": str(remote), "clone_key": remote.clone_key}
        return type(row)(**values)

    def _readdressed(
        self, request: ReceivedRequest, stage: Stage, later: timedelta, ids: dict[str, str]
    ) -> ReceivedRequest:
        """As if it had been sent to this app, about a repository of this host, so much later; signed again."""
        body = request.body.replace(self.address.encode(), stage.host.address.encode())
        for time in (request.payload["timestamp"], request.payload["noticed_at"]):
            body = body.replace(time.encode(), iso(datetime.fromisoformat(time) + later).encode())
        headers = dict(request.headers) | {"host": stage.receiver.url.removeprefix("http://")}
        signed = Signer(stage.app).headers(ids[request.path], body)
        headers |= {name.lower(): value for name, value in signed.items()}
        return replace(request, headers=headers, body=body, payload=json.loads(body))


def _name_messages(deliveries: list[Any], versions: Iterable[Any]) -> None:
    """By the keys of the new rows, as a run does."""
    of_path = {version.file.path: version for version in versions}
    for delivery in deliveries:
        version = of_path[delivery.path]
        delivery.message_id = message_id(
            delivery.watch,
            Change(
                event=Event(delivery.event),
                file_id=version.file_id,
                path=version.file.git_path,
                sha256=version.sha256,
                since=version.since,
            ),
        )
