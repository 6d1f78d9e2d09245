"""What can be done with apps and watches: onboard, watch, unwatch, and the locked delete behind it."""

import logging
import secrets
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from repositories import clones, queue
from repositories.errors import AccessDenied, DocoraError
from repositories.models import App, Repository, Watch, WatchStatus, hash_of
from repositories.remotes import RemoteUrl
from repositories.repo_lock import repo_lock

log = logging.getLogger("docora.repositories")


class NotWatched(DocoraError):
    code = "not-watched"

    def __init__(self) -> None:
        super().__init__("This app does not watch a repository of that id.")


class TokenRefused(DocoraError):
    code = "token-refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What an app gets to know once, when it is onboarded."""

    app_id: str
    bearer_token: str
    webhook_key: str


def onboard(name: str, base_url: str, *, webhook_key: str = "", **details: str) -> Credentials:
    bearer_token = f"docora_{secrets.token_hex(32)}"
    webhook_key = webhook_key or secrets.token_urlsafe(32)
    app = App(
        name=name,
        base_url=base_url.rstrip("/"),
        bearer_hash=hash_of(bearer_token),
        webhook_key=webhook_key,
        **details,
    )
    app.full_clean()
    app.save()
    return Credentials(app_id=app.public_id, bearer_token=bearer_token, webhook_key=webhook_key)


def rotate_webhook_key(app: App, *, overlap: timedelta = timedelta(days=1), webhook_key: str = "") -> str:
    """Sign with a new key (given, or generated) from now on, and until the overlap ends with the old one too.

    Returns the new key. Rotating again during an overlap forgets the oldest key.
    """
    new_key = webhook_key or secrets.token_urlsafe(32)
    with transaction.atomic():
        row = App.objects.select_for_update().get(pk=app.pk)
        row.previous_webhook_key, row.webhook_key = row.webhook_key, new_key
        row.previous_key_until = timezone.now() + overlap
        row.full_clean()
        row.save(update_fields=["webhook_key", "previous_webhook_key", "previous_key_until"])
    app.refresh_from_db(fields=["webhook_key", "previous_webhook_key", "previous_key_until"])
    return new_key


def disable_app(app: App, reason: str) -> None:
    """Send nothing more to the endpoint, at once, and write to the app's contact."""
    with transaction.atomic():
        rows = App.objects.filter(pk=app.pk, disabled_at=None)
        if not rows.update(disabled_at=timezone.now(), disabled_reason=reason[:300]):
            return
        app.watches.update(
            status=WatchStatus.FAILED,
            last_error_code="endpoint-disabled",
            last_error=reason,
            generation=F("generation") + 1,
        )
        _enqueue_for(app, "snapshots.jobs.mail_disabled")
    app.refresh_from_db(fields=["disabled_at", "disabled_reason"])
    log.warning("Disabled the endpoint of %s: %s", app, reason)


def enable_app(app: App) -> None:
    """Send again: everything that the app has missed, found by a fresh comparison."""
    healthy = {"disabled_at": None, "disabled_reason": "", "failing_since": None, "slow_since": None}
    with transaction.atomic():
        App.objects.filter(pk=app.pk).update(**healthy)
        app.watches.filter(access_denied_at=None).update(**Watch.FRESH)
        _enqueue_for(app, "snapshots.jobs.resume_app")
    app.refresh_from_db(fields=list(healthy))
    log.info("Enabled the endpoint of %s", app)


def watch(app: App, url: str, *, token: str = "", ref: str = "") -> Watch:
    """Watch a repository that this token can read now; watching it again starts over.

    The old watch is replaced in one transaction, so a failure on the way leaves it as it was.
    """
    remote = RemoteUrl.parse(url)
    clones.look(clones.Remote(url=remote, token=token), ref)
    is_private = bool(token) and _is_private(remote, ref)
    with transaction.atomic():
        repository = _repository(remote, ref, is_private=is_private)
        repository.watches.filter(app=app).delete()
        made = Watch.objects.create(app=app, repository=repository, token=token, access_proven_at=timezone.now())
        request_snapshot(repository)
    return made


def change_token(app: App, repository_id: str, token: str) -> None:
    """Use another token from now on; what was delivered stays delivered."""
    watch = _watch_of(app, repository_id)
    repository = watch.repository
    try:
        clones.look(clones.Remote(url=repository.remote, token=token), repository.ref)
    except AccessDenied as error:
        raise TokenRefused(f"The new token cannot read the repository: {error}") from None
    with transaction.atomic():
        changed = Watch.objects.filter(pk=watch.pk).update(token=token, access_proven_at=timezone.now(), **Watch.FRESH)
        if not changed:
            raise NotWatched
        Repository.objects.filter(pk=repository.pk).update(**Repository.HEALTHY)
        request_snapshot(repository)


def unwatch(app: App, repository_id: str) -> None:
    """Forget the watch and all that was delivered for it; the last watch takes clone and repository with it."""
    with transaction.atomic():
        _watch_of(app, repository_id).delete()
        _drop_if_unwatched(repository_id)


def purge_clone(clone_key: str, *, job_id: str) -> bool:
    """Delete the clone unless somebody watches it (again). Returns whether it was deleted."""
    with repo_lock(clone_key, job_id=job_id) as held:
        if Repository.objects.filter(clone_key=clone_key).exists():
            return False
        trash = clones.discard(clone_key, held=held)
    if trash:
        clones.empty(trash)
        log.info("Deleted the clone of %s", clone_key)
    return trash is not None


def request_snapshot(repository: Repository) -> None:
    queue.enqueue(
        queue.SNAPSHOTS,
        "snapshots.jobs.take_snapshot",
        repository.pk,
        job_id=f"snapshot-{repository.pk}",
        timeout=2 * settings.GIT_TIMEOUT,
    )


def _enqueue_for(app: App, function: str) -> None:
    name = function.rpartition(".")[2].replace("_", "-")
    queue.enqueue(queue.DELIVERIES, function, app.pk, job_id=f"{name}-{app.pk}", timeout=60)


def _repository(remote: RemoteUrl, ref: str, *, is_private: bool) -> Repository:
    repository, made = Repository.objects.select_for_update().get_or_create(
        clone_key=remote.clone_key,
        ref=ref,
        defaults={"url": str(remote), "owner": remote.owner, "name": remote.name, "is_private": is_private},
    )
    if not made:
        Repository.objects.filter(pk=repository.pk).update(is_private=is_private, next_check_at=timezone.now())
    return repository


def _is_private(remote: RemoteUrl, ref: str) -> bool:
    """A repository that cannot be read without a token is private."""
    try:
        clones.look(clones.Remote(url=remote), ref)
    except AccessDenied:
        return True
    return False


def _watch_of(app: App, repository_id: str) -> Watch:
    try:
        return Watch.objects.select_related("repository").get(app=app, repository__public_id=repository_id)
    except Watch.DoesNotExist:
        raise NotWatched from None


def _drop_if_unwatched(repository_id: str) -> None:
    repository = Repository.objects.select_for_update().get(public_id=repository_id)
    if repository.watches.exists():
        return
    repository.delete()
    if not Repository.objects.filter(clone_key=repository.clone_key).exists():
        queue.enqueue(
            queue.SNAPSHOTS,
            "snapshots.jobs.purge_clone",
            repository.clone_key,
            job_id=f"purge-{repository.pk}",
            timeout=settings.GIT_TIMEOUT,
        )
