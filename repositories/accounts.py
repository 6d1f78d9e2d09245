"""What can be done with apps: onboard, rotate, disable, enable, and delete with all that hangs on them."""

import json
import logging
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, QuerySet
from django.utils import timezone

from repositories import access, canary, github_app, messages, watch_state
from repositories.base import network
from repositories.errors import ForbiddenAddress, HostUnavailable, InvalidBaseUrl, NotWatched, TooManyTokens
from repositories.models import App, GitHubGrant, Repository, Watch, hash_of
from repositories.watches import hold_app, unwatch

log = logging.getLogger("docora.repositories")

_KEYS = ("webhook_key", "previous_webhook_keys", "previous_key_until")
_MOST_PREVIOUS_KEYS = 8
_MOST_PREVIOUS_BEARERS = 8
# Of an endpoint: it has not failed, hung or asked for a pause.
_NOTHING_KNOWN: dict[str, Any] = {"failing_since": None, "slow_since": None, "resting_until": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What an app gets to know once, when it is onboarded."""

    app_id: str
    bearer_token: str
    webhook_key: str


def onboard(
    name: str, base_url: str, *, webhook_key: str = "", events: Sequence[str] = (), **details: Any
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


def rotate_bearer_token(app: App, *, overlap: timedelta = timedelta(days=1)) -> str:
    """A new bearer token; the old one works until the overlap ends.

    Rotating again ends no token early, because the first answer may have been lost, and lets none live longer. Without
    an overlap, all earlier tokens stop at once.
    """
    bearer_token, now = _bearer_token(), timezone.now()
    with transaction.atomic():
        row = App.objects.select_for_update(no_key=True).get(pk=app.pk)
        ended = row.previous_bearers.filter(valid_until__lte=now) if overlap else row.previous_bearers.all()
        ended.delete()
        if overlap:
            if row.previous_bearers.count() >= _MOST_PREVIOUS_BEARERS:
                raise TooManyTokens(_MOST_PREVIOUS_BEARERS)
            row.previous_bearers.create(bearer_hash=row.bearer_hash, valid_until=now + overlap)
        App.objects.filter(pk=app.pk).update(bearer_hash=hash_of(bearer_token))
    return bearer_token


def previous_bearer_until(app: App) -> datetime | None:
    """When the last of the earlier bearer tokens ends."""
    valid = app.previous_bearers.filter(valid_until__gt=timezone.now()).order_by("valid_until").last()
    return valid.valid_until if valid else None


def check_endpoint(base_url: str) -> None:
    """Refuse a base URL whose host may not be dialled. The app is not told which address was found."""
    parts = urlsplit(_cleaned_base_url(base_url))
    is_plain = parts.scheme == "http"
    try:
        network.resolve(parts.hostname or "", parts.port or (80 if is_plain else 443), plain=is_plain)
    except ForbiddenAddress:
        raise ForbiddenAddress("base_url: its host has an address that may not be dialled, or not over http.") from None
    except HostUnavailable:
        raise InvalidBaseUrl("base_url: its host has no address.") from None


def change_base_url(app: App, base_url: str) -> None:
    """Send to another endpoint from now on. Deliveries under way stop and go on there; nothing is sent again.

    What the old endpoint did (failing, slow, asking for a pause) does not count against the new one. A disabled app
    stays disabled.
    """
    base_url = _cleaned_base_url(base_url)
    fresh = {"base_url": base_url, **_NOTHING_KNOWN}
    with transaction.atomic():
        row = App.objects.select_for_update(no_key=True).get(pk=app.pk)
        if row.base_url != base_url:
            App.objects.filter(pk=app.pk).update(**fresh)
            app.watches.update(restarts=F("restarts") + 1)
            if row.disabled_at is None:
                waiting = watch_state.behind(app.watches.filter(access_denied_at=None)).values("pk")
                watch_state.start_over(Watch.objects.filter(pk__in=waiting))
                messages.resume_app(app.pk)
    app.refresh_from_db(fields=list(fresh))


def _cleaned_base_url(base_url: str) -> str:
    try:
        return str(App._meta.get_field("base_url").clean(base_url.rstrip("/"), None))
    except ValidationError as error:
        raise InvalidBaseUrl(f"base_url: {' '.join(error.messages)}") from None


def rotate_webhook_key(app: App, *, overlap: timedelta = timedelta(days=1), webhook_key: str = "") -> str:
    """Sign with a new key (given, or generated) from now on, and until the overlap ends with the old one too.

    Returns the new key. Rotating again during an overlap keeps the old ones: the first answer may have been lost.
    """
    new_key = webhook_key or secrets.token_urlsafe(32)
    with transaction.atomic():
        row = App.objects.select_for_update(no_key=True).get(pk=app.pk)
        previous = [key for key in row.signing_keys if key != new_key]
        row.previous_webhook_keys, row.webhook_key = json.dumps(previous[:_MOST_PREVIOUS_KEYS]), new_key
        row.previous_key_until = timezone.now() + overlap
        row.full_clean()
        row.save(update_fields=_KEYS)
    app.refresh_from_db(fields=_KEYS)
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
    healthy = {"disabled_at": None, "disabled_reason": "", **_NOTHING_KNOWN}
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
    """The GitHub App may read other repositories of this owner than before: prove the access through it again."""
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
