"""`manage.py check --deploy`: what is convenient on one's own machine and unsafe in production.

The ids are stable: SILENCED_SYSTEM_CHECKS and monitoring may name them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.db import DatabaseError

from docora import condition, env

LOCAL_NAMES = {"127.0.0.1", "localhost", "::1", "[::1]"}


@register(Tags.security, deploy=True)
def check_keys(**_: Any) -> Iterator[CheckMessage]:
    kept = (
        f"It lies in {settings.DATA_DIR / 'keys'}, beside the data that it protects, and in every copy of that folder."
    )
    if not env.SECRET_KEY:
        yield Warning("The secret key was generated.", hint=f"{kept} Set DJANGO_SECRET_KEY.", id="docora.W001")
    if not env.ENCRYPTION_KEYS:
        yield Warning("The encryption key was generated.", hint=f"{kept} Set ENCRYPTION_KEYS.", id="docora.W002")


@register(Tags.security, deploy=True)
def check_web(**_: Any) -> Iterator[CheckMessage]:
    if settings.DEBUG:
        yield Warning("Debug pages show settings and data.", hint="Unset DJANGO_DEBUG.", id="docora.W003")
    if not env.SECURE:
        hint = "Put a proxy with a certificate in front and set DOCORA_SECURE=true."
        yield Warning("Tokens and sessions travel over plain http.", hint=hint, id="docora.W004")
    if "*" in settings.ALLOWED_HOSTS:
        hint = "Name the hosts in DJANGO_ALLOWED_HOSTS."
        yield Warning("Requests for every host name are answered.", hint=hint, id="docora.W005")
    if set(settings.ALLOWED_HOSTS) <= LOCAL_NAMES:
        hint = "Name the public host in DJANGO_ALLOWED_HOSTS, or its requests are refused."
        yield Warning("Only requests for this machine are answered.", hint=hint, id="docora.W006")


@register(Tags.security, deploy=True)
def check_networks(**_: Any) -> Iterator[CheckMessage]:
    if any(network.prefixlen == 0 for network in settings.TRUSTED_NETWORKS):
        hint = "Name only the networks that git hosts and receivers are in."
        yield Warning("DOCORA_TRUSTED_NETWORKS trusts every address.", hint=hint, id="docora.W007")


@register(Tags.database)
def check_stored_secrets(*, databases: Sequence[str] | None = None, **_: Any) -> Iterator[CheckMessage]:
    """Only in `check` and `migrate`, which name a database: other commands tell wrong keys themselves, in one line."""
    if not databases:
        return
    try:
        condition.check_keys()
    except condition.Unmet as reason:
        yield Error(str(reason), hint=condition.HINTS["keys"], id="docora.E001")
    except DatabaseError:
        return  # no database or no tables yet


def check_condition(*, databases: Sequence[str] | None = None, **_: Any) -> Iterator[CheckMessage]:
    """Whether it runs, as /ready says. Registered by `check` alone, and silent where no Redis answers: not started."""
    for name in ("jobs", "scheduler") if databases else ():
        outcome = condition.outcome(name)
        if outcome not in ("ok", condition.NO_REDIS):
            yield Warning(f"{name}: {outcome}", hint=condition.HINTS[name], id="docora.W008")


@register(Tags.database)
def check_restored(**_: Any) -> Iterator[CheckMessage]:
    try:
        condition.check_restored()
    except condition.Unmet as reason:
        yield Error(str(reason), hint="Create another database, and name it in DATABASE_URL.", id="docora.E002")
    except DatabaseError:
        return


@register(Tags.database, deploy=True)
def check_reach(**_: Any) -> Iterator[CheckMessage]:
    if settings.DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
        hint = "For workers on several hosts, set DATABASE_URL to a PostgreSQL database."
        yield Info("The database is SQLite: one host only.", hint=hint, id="docora.I001")
    if not env.REDIS_URL:
        hint = "For workers on several hosts, set REDIS_URL."
        yield Info("Queue and lock are in the embedded Valkey: one host only.", hint=hint, id="docora.I002")
