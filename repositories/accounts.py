"""What can be done with apps: onboard, rotate, disable, enable, and delete with all that hangs on them."""

import json
import logging
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from django.db import transaction
from django.db.models import Count, Exists, OuterRef, QuerySet
from django.utils import timezone

from repositories import access, canary, github_app, messages, watch_state
from repositories.errors import NotWatched
from repositories.models import App, GitHubGrant, Repository, Watch, hash_of
from repositories.watches import hold_app, unwatch

log = logging.getLogger("docora.repositories")

_MOST_PREVIOUS_KEYS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What an app gets to know once, when it is onboarded."""

    app_id: str
    bearer_token: str
    webhook_key: str


def onboard(
    name: str, base_url: str, *, webhook_key: str = "", events: Sequence[str] = (), **details: str
) -> Credentials:
    canary.check_keys()
    bearer_token = _bearer_token()
    webhook_key = webhook_key or secrets.token_urlsafe(32)
    app = App(
        name=name,
        base_url=base_url,
        bearer_hash=hash_of(bearer_token),
        webhook_key=webhook_key,
        events=list(events),
        **details,
    )
    app.full_clean()
    app.save()
    return Credentials(app_id=app.public_id, bearer_token=bearer_token, webhook_key=webhook_key)


def choose_events(app: App, events: Iterable[str]) -> None:
    """The app wants these optional events from now on, and no others. ValidationError if one of them is none."""
    app.events = list(events)
    app.full_clean()
    app.save(update_fields=["events", "wants_recovery"])


def rotate_bearer_token(app: App) -> str:
    """A new bearer token; the old one stops working at once."""
    bearer_token = _bearer_token()
    App.objects.filter(pk=app.pk).update(bearer_hash=hash_of(bearer_token))
    return bearer_token


def rotate_webhook_key(app: App, *, overlap: timedelta = timedelta(days=1), webhook_key: str = "") -> str:
    """Sign with a new key (given, or generated) from now on, and until the overlap ends with the old one too.

    Returns the new key. Rotating again during an overlap keeps the old ones: the first answer may have been lost.
    """
    new_key = webhook_key or secrets.token_urlsafe(32)
    with transaction.atomic():
        row = App.objects.select_for_update().get(pk=app.pk)
        previous = [key for key in row.signing_keys if key != new_key]
        row.previous_webhook_keys, row.webhook_key = json.dumps(previous[:_MOST_PREVIOUS_KEYS]), new_key
        row.previous_key_until = timezone.now() + overlap
        row.full_clean()
        row.save(update_fields=["webhook_key", "previous_webhook_keys", "previous_key_until"])
    app.refresh_from_db(fields=["webhook_key", "previous_webhook_keys", "previous_key_until"])
    return new_key


def disable_app(app: App, reason: str) -> None:
    """Send nothing more to the endpoint, at once, and write to the app's contact."""
    with transaction.atomic():
        rows = App.objects.filter(pk=app.pk, disabled_at=None)
        if not rows.update(disabled_at=timezone.now(), disabled_reason=reason[:300]):
            return
        watch_state.disable(app.watches.all(), reason)
        messages.mail_disabled(app.pk)
    app.refresh_from_db(fields=["disabled_at", "disabled_reason"])
    log.warning("Disabled the endpoint of %s: %s", app, reason)


def enable_app(app: App) -> None:
    """Send again: everything that the app has missed, found by a fresh comparison."""
    healthy = {
        "disabled_at": None, "disabled_reason": "", "failing_since": None, "slow_since": None, "resting_until": None
    }  # fmt: skip
    with transaction.atomic():
        App.objects.filter(pk=app.pk).update(**healthy)
        watch_state.start_over(app.watches.filter(access_denied_at=None))
        messages.resume_app(app.pk)
    app.refresh_from_db(fields=list(healthy))
    log.info("Enabled the endpoint of %s", app)


def grant(app: App, pattern: str) -> GitHubGrant:
    """Let the app read through the GitHub App; what it watches there without a token is looked at again."""
    granted = GitHubGrant(app=app, pattern=pattern)
    granted.full_clean()
    with transaction.atomic():
        granted.save()
        look_again(app.watches.all(), owner=granted.owner)
    return granted


def withdraw_grant(granted: GitHubGrant) -> None:
    """Nothing more is sent or shown to the app before its access is proven anew, without the GitHub App."""
    with transaction.atomic():
        granted.delete()
        look_again(granted.app.watches.all(), owner=granted.owner)


def look_again(watches: QuerySet[Watch], *, owner: str) -> None:
    """What may be read through the GitHub App of this owner's repositories has changed, or may have."""
    concerned = watches.filter(token="", repository__owner__iexact=owner).select_related("repository")
    for watch in concerned:
        if github_app.serves(watch.repository.remote):
            github_app.forget_token(watch.repository.remote)
            access.forget_proofs(Watch.objects.filter(pk=watch.pk))
            messages.take_snapshot(watch.repository_id, planned=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Impact:
    """What goes with an app."""

    watches: int
    orphans: tuple[str, ...]
    files: int


def impact_of_deleting(app: App) -> Impact:
    """Look before `delete_app`: its watches, the repositories that nobody else watches, the files delivered."""
    others = Watch.objects.exclude(app=app).filter(repository=OuterRef("pk"))
    orphans = Repository.objects.filter(~Exists(others), watches__app=app)
    totals = app.watches.aggregate(watches=Count("pk", distinct=True), files=Count("delivered"))
    return Impact(**totals, orphans=tuple(sorted(map(str, orphans))))


def delete_app(app: App) -> None:
    """Delete the app with its watches, and the repositories that nobody else watches, in one transaction.

    Repositories are locked in one order, so two deletions cannot wait for each other. Their clones are
    purged one by one: a busy one holds back no other, and no two locks are ever held together.
    """
    with transaction.atomic():
        hold_app(app)
        watched = Repository.objects.filter(watches__app=app).order_by("clone_key", "ref")
        for public_id in watched.values_list("public_id", flat=True):
            with suppress(NotWatched):
                unwatch(app, public_id)
        app.delete()
    log.info("Deleted the app %s", app)


def _bearer_token() -> str:
    return f"docora_{secrets.token_hex(32)}"
