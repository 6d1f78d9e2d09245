"""`manage.py up`: all of Docora on this host, in the foreground."""

import contextlib
import os
import secrets
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import DatabaseError, connection, connections
from django.db.migrations.executor import MigrationExecutor

import docora
from docora import env
from docora.processes import forked, preflight, warm_up
from docora.processes.mark import mark_this_process
from docora.processes.preflight import StartError, one_line
from docora.processes.signals import StopRequests
from docora.processes.supervisor import Plan, Supervisor
from repositories.base import places, queue
from repositories.base.words import plural


class Command(BaseCommand):
    help = (
        "Start web, workers, scheduler and, unless REDIS_URL is set, an embedded Valkey; restart what dies;"
        " stop all of it on Ctrl-C or SIGTERM. Jobs that are running get DOCORA_STOP_GRACE seconds to finish"
        " and go back to their queue otherwise; a second Ctrl-C does not wait. The settings come from the"
        " environment: see docs/settings.md."
    )
    # Each failure is one line; `migrate` runs the checks all the same.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--port", type=_port, default=env.PORT, help="the port to listen on (%(default)s)")

    def handle(self, **options: Any) -> None:
        run = mark_this_process()
        try:
            with StopRequests() as stop:
                self._serve(_plan(run, options["port"]), stop)
        except StartError as error:
            self.stderr.write(f"docora: {error}")  # red on a terminal
            sys.exit(1)

    def _serve(self, plan: Plan, stop: StopRequests) -> None:
        started = time.monotonic()
        self._say(f"{self.style.MIGRATE_HEADING(f'Docora {docora.__version__}')}, data in {plan.data}")
        preflight.check_git()
        preflight.check_writable(plan.data, "DOCORA_DATA_DIR")
        preflight.check_writable(settings.REPOS_BASE_PATH, "REPOS_BASE_PATH")
        with preflight.only_one(plan.data, plan.run) as earlier_run, preflight.listen(env.BIND, plan.port) as listener:
            preflight.check_database()
            if not plan.embedded_socket:
                preflight.check_redis(plan.redis_url)
            preflight.check_restored()
            self._migrate()
            preflight.check_keys()
            self._say(f"  starting {_processes(plan)}")
            warm_up.for_children()
            supervisor = Supervisor(plan, listener, stop, lambda line: self._say(self.style.WARNING(line)))
            try:
                supervisor.start(earlier_run=earlier_run)
                if supervisor.wait_until_ready():
                    self._say(self.style.SUCCESS(f"Ready after {time.monotonic() - started:.1f} s.") + "\n")
                    self._tell_where_things_are(plan)
                    supervisor.watch()
                self._say("Stopping.")
            finally:
                supervisor.stop()
            self._say("Stopped: nothing is left running.")

    def _migrate(self) -> None:
        if error := forked.outcome_of(self._migrate_here):
            raise StartError(f"the database cannot be migrated: {error}")

    def _migrate_here(self) -> str:
        """Runs in a process of its own: Django keeps all migrations in memory, and every child would inherit them."""
        try:
            executor = MigrationExecutor(connection)
            missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
            if missing:
                self._say(f"  bringing the database up to date: {plural(len(missing), 'migration')}")
                call_command("migrate", interactive=False, verbosity=0)
        except DatabaseError as error:
            return one_line(error)
        return ""

    def _tell_where_things_are(self, plan: Plan) -> None:
        place = self.style.MIGRATE_LABEL
        self._say(f"  Admin              {place(f'{plan.url}/admin/')}")
        self._say(f"  API documentation  {place(f'{plan.url}/api/v1/docs')}")
        self._say(f"  Health             {place(f'{plan.url}/health')}")
        self._say(f"  Logs               {plan.logs}")
        self._say(f"  Database           {places.database()}")
        self._say(f"  Redis              {places.redis_server()}")
        self._say(f"  Processes          {_processes(plan)}\n")
        if password := _create_first_admin():
            self._tell_first_password(plan.data / "first-password", password)
        self._say("Ctrl-C stops all of it.")

    def _tell_first_password(self, file: Path, password: str) -> None:
        """Print it on a terminal only: other output is a log, which others read and which is kept."""
        change = "change it with `.venv/bin/python manage.py changepassword admin`"
        if self.stdout.isatty():
            self._say(f"  First start: sign in to the admin as admin with the password {self.style.SUCCESS(password)}")
            self._say(f"  It is shown only now; {change}.\n")
            return
        file.unlink(missing_ok=True)  # a file of an earlier database could have another mode
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
            written.write(f"{password}\n")
        self._say(f"  First start: sign in to the admin as admin with the password in {file}")
        self._say(f"  Then {change}, and delete the file.\n")

    def _say(self, line: str) -> None:
        # The terminal may be gone while there still is something to stop.
        with contextlib.suppress(OSError):
            self.stdout.write(f"{line}\n", ending="")
            self.stdout.flush()


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"expected a number from 1 to 65535, got {text!r}")
    return int(text)


def _plan(run: str, port: int) -> Plan:
    return Plan(
        run=run,
        data=settings.DATA_DIR,
        address=_reachable_address(env.BIND),
        port=port,
        host=_reachable_host(settings.ALLOWED_HOSTS),
        redis_url=settings.REDIS_URL,
        embedded_socket=None if env.REDIS_URL else settings.REDIS_SOCKET,
        web_processes=env.WEB_CONCURRENCY,
        workers={
            queue.URGENT: env.URGENT_CONCURRENCY,
            queue.SNAPSHOTS: env.SCAN_CONCURRENCY,
            queue.DELIVERIES: env.DELIVERY_CONCURRENCY,
            queue.SLOW_DELIVERIES: env.SLOW_DELIVERY_CONCURRENCY,
        },
        stop_grace=env.STOP_GRACE,
    )


def _reachable_address(bind: str) -> str:
    """Where this machine reaches what listens on `bind`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(bind, bind)  # noqa: S104  compared, not bound


def _reachable_host(allowed: list[str]) -> str:
    return next((name.lstrip(".") for name in allowed if name != "*"), "127.0.0.1")


def _processes(plan: Plan) -> str:
    singles = ["valkey"] if plan.embedded_socket else []
    workers = [f"{number} for {name}" for name, number in plan.workers.items()]
    return f"{', '.join([*singles, 'web', 'scheduler'])}, workers ({', '.join(workers)})"


def _create_first_admin() -> str | None:
    """A password for the only user of a database that had none; None when there are users already."""
    users = get_user_model()
    try:
        if users.objects.exists():
            return None
        password = secrets.token_urlsafe(15)
        users.objects.create_superuser(username="admin", password=password)
        return password
    finally:
        connections.close_all()
