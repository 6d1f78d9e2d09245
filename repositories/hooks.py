"""Hooks of git hosts: made and ended here, and which watched repositories a push concerns."""

import base64
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.utils import timezone

from repositories import github_app
from repositories.base import crypto, queue
from repositories.errors import InvalidUrl, NoHook
from repositories.git.urls import RemoteUrl
from repositories.models import Hook, Watch
from repositories.watches import hold_watch

# Earlier secrets count for so long after the last change: time to change the secret at the git host. Not the last one
# alone: the answer with it may have been lost, and the host has the one before.
OVERLAP = timedelta(days=1)
_MOST_PREVIOUS_SECRETS = 2
MOST_SECRETS = 1 + _MOST_PREVIOUS_SECRETS

# The hook of the operator's GitHub App. It has no row: its secret is a setting.
GITHUB_APP_HOOK = "github-app"

_PUBLIC_ID = re.compile(r"hook_[0-9a-f]{24}")
# By hand: Django needs longer to make this question than the database to answer it, and hooks come in bursts.
_FIND = """
SELECT hook.public_id, hook.host, hook.secret,
    CASE WHEN hook.previous_secret_until > %s THEN hook.previous_secret ELSE '' END,
    repository.id, repository.ref, repository.branch, repository.sequence
FROM repositories_hook hook
LEFT JOIN repositories_watch watch ON watch.id = hook.watch_id
LEFT JOIN repositories_repository repository ON repository.id = watch.repository_id
WHERE hook.public_id IN
"""
# A host that does not tell upper from lower case may name a repository in another case than the app did.
_OF_HOST = """
SELECT id, ref, branch, sequence FROM repositories_repository WHERE lower(clone_key) IN (lower(%s), lower(%s))
"""
_LOG = "docora:hook:{}"
_LOG_KEPT = 90 * 24 * 3600
_LONGEST_EVENT = 80


@dataclass(frozen=True, slots=True)
class Watched:
    """As much of a watched ref as a hook needs. A model would take longer to make than the rest of the answer."""

    pk: int
    ref: str
    branch: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenHook:
    """A hook as what arrives at it needs it: for the one repository, or for all of the host.

    `secrets` are the newest and, while they count, those before it.
    """

    public_id: str
    secrets: Sequence[str]
    host: str = ""
    repository: Watched | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """What a git host says was pushed. It is used as a reason to look, and for nothing else.

    `refs` are full names, such as refs/heads/main; None: the host did not say, or too much was said to be read.
    """

    path: str = ""
    refs: frozenset[str] | None = None
    default_branch: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What has arrived at a hook: how often it was a hint, how often nothing, how often refused; and the newest."""

    accepted: int = 0
    ignored: int = 0
    refused: int = 0
    last_at: datetime | None = None
    last_event: str = ""
    last_delivery: str = ""
    """The id by which the git host knows it."""
    last_outcome: str = ""
    last_error_at: datetime | None = None
    last_error: str = ""


def open_for(watch: Watch) -> tuple[Hook, str]:
    """The watch's hook with a new secret; those before it count for OVERLAP."""
    with transaction.atomic():
        Watch.objects.select_for_update().get(pk=watch.pk)
        hook = Hook.objects.filter(watch=watch).first()
        if hook:
            return hook, change_secret(hook)
        secret = _new_secret()
        return Hook.objects.create(watch=watch, secret=secret), secret


def open_for_host(host: str) -> tuple[Hook, str]:
    """A hook for every watched repository of a host, for the operator."""
    host = host.strip().lower()
    if host not in settings.GIT_HOSTS:
        raise ValidationError(f"DOCORA_GIT_HOSTS does not allow {host}; it allows {', '.join(settings.GIT_HOSTS)}.")
    secret = _new_secret()
    return Hook.objects.create(host=host, secret=secret), secret


def change_secret(hook: Hook) -> str:
    secret = _new_secret()
    with transaction.atomic():
        _wait_for_renewal(hook)
        row = Hook.objects.select_for_update().get(pk=hook.pk)
        now = timezone.now()
        overlaps = row.previous_secret_until is not None and row.previous_secret_until > now
        previous = [row.secret, *(row.previous_secrets.split() if overlaps else [])]
        row.previous_secrets, row.secret = " ".join(previous[:_MOST_PREVIOUS_SECRETS]), secret
        row.previous_secret_until = now + OVERLAP
        row.save(update_fields=["secret", "previous_secrets", "previous_secret_until"])
    hook.refresh_from_db()
    return secret


def close(hook: Hook) -> None:
    """Whatever arrives from now on is refused."""
    with transaction.atomic():
        _wait_for_renewal(hook)
        Hook.objects.filter(pk=hook.pk).delete()


def _wait_for_renewal(hook: Hook) -> None:
    """A watch that is renewed takes its hook along, under the lock of its row."""
    if hook.watch_id:  # else it is that of a host
        hold_watch(hook.watch_id)


def of(watch: Watch) -> Hook:
    hook = Hook.objects.filter(watch=watch).first()
    if hook is None:
        raise NoHook
    return hook


def find(public_ids: Iterable[str]) -> dict[str, OpenHook]:
    """Those that there are, by their ids."""
    asked = set(public_ids)
    found = {}
    if ids := [public_id for public_id in asked if _PUBLIC_ID.fullmatch(public_id)]:
        now = connection.ops.adapt_datetimefield_value(timezone.now())
        places = ", ".join(["%s"] * len(ids))
        found = {row[0]: _opened(*row) for row in _rows(f"{_FIND} ({places})", [now, *ids])}
    if GITHUB_APP_HOOK in asked and has_github_app_hook():
        found[GITHUB_APP_HOOK] = OpenHook(
            public_id=GITHUB_APP_HOOK, secrets=[settings.GITHUB_APP_WEBHOOK_SECRET], host=github_app.git_address()
        )
    return found


def has_github_app_hook() -> bool:
    return bool(settings.GITHUB_APP_WEBHOOK_SECRET and github_app.git_address())


def _opened(
    public_id: str, host: str, secret: str, previous: str, pk: int | None, ref: str, branch: str, sequence: int
) -> OpenHook:
    return OpenHook(
        public_id=public_id,
        host=host,
        secrets=[_decrypt(secret), *(_decrypt(previous).split() if previous else [])],
        repository=Watched(pk, ref, branch, sequence) if pk else None,
    )


def _rows(question: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(question, parameters)
        return list(cursor.fetchall())


# Remembered: a hook that comes once mostly comes again, and decrypting is a tenth of its answer.
_decrypt = lru_cache(maxsize=1000)(crypto.decrypt)


def _new_secret() -> str:
    """In the form that Standard Webhooks gives to secrets; the other hosts take any text."""
    return f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"


def is_of_github_app(hook: OpenHook) -> bool:
    """Whether the hook is that of the host on which the operator's GitHub App reads."""
    return bool(hook.host) and hook.host == github_app.git_address()


def concerned(hook: OpenHook, push: Push) -> list[Watched]:
    """The watched repositories that may have changed."""
    named = [hook.repository] if hook.repository else _of_host(hook.host, push.path)
    return [repository for repository in named if _may_have_changed(repository, push)]


def _of_host(host: str, path: str) -> list[Watched]:
    """Every watched ref of the repository; of this host alone, whatever URL the host itself names."""
    keys = []
    for scheme in ("https", "http"):
        try:
            keys.append(RemoteUrl.parse(f"{scheme}://{host}/{path}").clone_key)
        except InvalidUrl:
            continue
    return [Watched(*row) for row in _rows(_OF_HOST, [keys[0], keys[-1]])] if keys else []


def _may_have_changed(repository: Watched, push: Push) -> bool:
    if push.refs is None:
        return True
    if repository.ref:
        return not push.refs.isdisjoint({f"refs/heads/{repository.ref}", f"refs/tags/{repository.ref}"})
    # The default branch, as it was at the last look or as the host says it is now.
    branches = {f"refs/heads/{name}" for name in (repository.branch, push.default_branch) if name}
    return not push.refs.isdisjoint(branches) if branches else bool(push.refs)


# In Lua: write down what has arrived. The outcome is accepted, ignored or refused.
NOTE = f"""
local function note(key, now, event, delivery, outcome, error)
  redis.call('HINCRBY', key, outcome, 1)
  redis.call('HSET', key, 'last_at', now, 'last_event', string.sub(event, 1, {_LONGEST_EVENT}),
    'last_delivery', string.sub(delivery, 1, {_LONGEST_EVENT}), 'last_outcome', outcome)
  if error ~= '' then redis.call('HSET', key, 'last_error_at', now, 'last_error', error) end
  redis.call('EXPIRE', key, {_LOG_KEPT})
end
"""


def log_key(public_id: str) -> str:
    return _LOG.format(public_id)


def logs(public_ids: Iterable[str]) -> dict[str, Log]:
    ids = list(public_ids)
    with queue.connection().pipeline(transaction=False) as pipeline:
        for public_id in ids:
            pipeline.hgetall(log_key(public_id))
        found = pipeline.execute()
    return {public_id: _read_log(raw) for public_id, raw in zip(ids, found, strict=True)}


def _read_log(raw: dict[bytes, bytes]) -> Log:
    facts = {name.decode(): value.decode(errors="replace") for name, value in raw.items()}
    return Log(
        accepted=int(facts.get("accepted", 0)),
        ignored=int(facts.get("ignored", 0)),
        refused=int(facts.get("refused", 0)),
        last_at=_moment(facts.get("last_at")),
        last_event=facts.get("last_event", ""),
        last_delivery=facts.get("last_delivery", ""),
        last_outcome=facts.get("last_outcome", ""),
        last_error_at=_moment(facts.get("last_error_at")),
        last_error=facts.get("last_error", ""),
    )


def _moment(text: str | None) -> datetime | None:
    return datetime.fromtimestamp(float(text), UTC) if text else None
