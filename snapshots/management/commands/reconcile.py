"""`manage.py reconcile`: what is not as the watches need it, and, if wanted, put right."""

import uuid
from argparse import ArgumentParser
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import track

from repositories.management.command import OperatorCommand
from repositories.management.lock_errors import explaining_lock_errors
from repositories.management.redis_errors import check_redis
from repositories.repo_lock import janitor_lock
from snapshots import reconcile


class Command(OperatorCommand):
    help = (
        "List clones without a row, rows without a clone, leftovers, commits and history that nobody needs, and"
        " what exceeds the quota. Changes nothing unless --apply is given. The scheduler applies it by itself."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--apply", action="store_true", help="put right what is found")

    def handle(self, *, apply: bool, **options: Any) -> None:
        check_redis()
        job_id = f"terminal-{uuid.uuid4().hex[:8]}"
        console = Console(file=cast("IO[str]", self.stdout))
        with console.status("Looking at the clones"):
            findings = list(reconcile.findings())
        for finding in findings:
            self.stdout.write(f"{finding.subject}: {finding.problem}")
        if not findings:
            self.stdout.write("Everything is as it should be.")
        elif apply:
            with explaining_lock_errors(), janitor_lock(job_id=job_id):
                shown = track(findings, description="Repairing", console=console, transient=not console.is_terminal)
                repaired = sum(reconcile.apply(finding, job_id=job_id) for finding in shown)
            self.stdout.write(f"{repaired} of {len(findings)} repaired.")
        else:
            self.stdout.write(f"{len(findings)} found; `manage.py reconcile --apply` repairs them.")
