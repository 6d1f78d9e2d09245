"""What the benchmark cannot do from outside, done in the service's own environment: the only module that knows Docora.

    python -m benchmarks.path.inside

reads one JSON array per line, the name of a function below and its arguments, and prints what it returns. It stays, so
that starting Python is never part of a measurement.
"""

import copy
import json
import sys
import time
from typing import Any

import django


def onboard(name: str, base_url: str, webhook_key: str) -> str:
    """A new app; returns its bearer token."""
    from repositories import accounts

    return accounts.onboard(name, base_url, webhook_key=webhook_key).bearer_token


def look(*repository_ids: str) -> float:
    """Ask for a look now, as the admin's button does; returns the moment before the first was asked for."""
    from repositories.models import Repository
    from repositories.watches import ask_for_snapshot

    found = list(Repository.objects.filter(public_id__in=repository_ids))
    started = time.monotonic()
    for repository in found:
        ask_for_snapshot(repository)
    return started


def multiply(repository_id: str, count: int) -> None:
    """Up to so many repositories like a synced one, each with a watch, as if they had been synced too."""
    from repositories.models import Repository, Watch

    model = Repository.objects.get(public_id=repository_id)
    watch = Watch.objects.get(repository=model)
    missing = range(Repository.objects.count() - 1, count - 1)
    repositories = Repository.objects.bulk_create(_alike(model, number) for number in missing)
    Watch.objects.bulk_create(_watch_like(watch, repository) for repository in repositories)


def _alike(model: Any, number: int) -> Any:
    twin = copy.copy(model)
    twin.pk = None
    twin.public_id = type(model)._meta.get_field("public_id").get_default()
    for field in ("url", "name", "clone_key"):
        setattr(twin, field, f"{getattr(model, field)}-{number}")
    return twin


def _watch_like(model: Any, repository: Any) -> Any:
    twin = copy.copy(model)
    twin.pk = None
    twin.repository = repository
    return twin


def make_due(address: str) -> int:
    """Every repository of a git server is due now; returns how many there are."""
    from django.utils import timezone

    from repositories.models import Repository

    return Repository.objects.filter(url__contains=f"//{address}/").update(next_check_at=timezone.now())


_FUNCTIONS = {function.__name__: function for function in (onboard, look, multiply, make_due)}


def main() -> None:
    django.setup()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(_FUNCTIONS[name](*arguments)), flush=True)


if __name__ == "__main__":
    main()
