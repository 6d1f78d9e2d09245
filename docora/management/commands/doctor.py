"""`manage.py doctor`: what Docora stands on, what is wrong with it, and the remedy."""

import json
import sys
from argparse import ArgumentParser
from collections import Counter
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from docora.processes import doctor
from docora.processes.doctor import Finding, Level
from repositories.base.words import plural


class Command(BaseCommand):
    help = (
        "Check git, the database, Redis, keys, disk, clocks, workers, git hosts, proxies and certificates: ok, warning"
        f" or error, each with its remedy, within {doctor.PATIENCE:g} seconds, also when Redis or the database is down."
        " Exits with 1 if there is an error; a warning alone is 0."
    )
    # It says itself what is wrong.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        findings = doctor.examine()
        levels = Counter(finding.level for finding in findings)
        if options["json"]:
            worst = next(
                level for level in (Level.ERROR, Level.WARNING, Level.OK) if levels[level] or level == Level.OK
            )
            self.stdout.write(json.dumps({"status": worst, "findings": list(map(asdict, findings))}, indent=2))
        else:
            for finding in findings:
                self._tell(finding)
            counts = [plural(levels[level], level) for level in (Level.ERROR, Level.WARNING)]
            self.stdout.write(f"\n{', '.join(counts)}, {levels[Level.OK]} ok")
        if levels[Level.ERROR]:
            sys.exit(1)

    def _tell(self, finding: Finding) -> None:
        style = {Level.OK: self.style.SUCCESS, Level.WARNING: self.style.WARNING, Level.ERROR: self.style.ERROR}
        self.stdout.write(f"{style[finding.level](f'{finding.level:<8}')} {finding.check:<28} {finding.says}")
        if finding.remedy:
            self.stdout.write(f"{'':<8} {'':<28} → {finding.remedy}")
