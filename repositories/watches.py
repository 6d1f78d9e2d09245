"""What can be done with watches: begin, change, end, and the locked delete behind it."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from repositories import access, circuit, github_app, messages, watch_state
from repositories.base import queue
from repositories.errors import AccessDenied, AppGone, GitError, NotWatched, TokenNeeded, TokenRefused, TooManyWatches
from repositories.git import clones
from repositories.git.urls import RemoteUrl
from repositories.models import App, Hook, Repository, Watch
from repositories.repo_lock import repo_lock
from repositories.selection import EVERYTHING, Selection

log = logging.getLogger("docora.repositories")

_OPTIONS = ("include", "exclude", "max_file_size")
_STATE = ("status", "retry_count", "retry_at", "last_error_code", "last_error")
_PUBLIC_ID = re.compile(r"repo_[0-9a-f]{24}")


def watch(app: App, url: str, *, token: str = "", ref: str = "", selection: Selection = EVERYTHING) -> Watch:
    """Watch a repository that this token can read now; watching it again starts over.

    The old watch is replaced in one transaction, so a failure on the way leaves it as it was.
    """
    return _begin(app, RemoteUrl.parse(url), token, ref, selection, renews=True)[0]


def ensure(
    app: App, url: str, *, token: str = "", ref: str = "", selection: Selection = EVERYTHING
) -> tuple[Watch, bool]:
    """The app's watch of this repository with these options, and whether it is new. No token: the watch keeps its own.

    Nothing is sent for a watch that has these options already, and only the difference for one that has others.
    """
    remote = RemoteUrl.parse(url)
    found = _find(app, remote, ref)
    if found:
        with suppress(NotWatched):  # unwatched since it was found
            return _adjust(found, token, selection), False
    return _begin(app, remote, token, ref, selection, renews=False)


def find_unchanged(app: App, url: str, *, token: str, ref: str, selection: Selection) -> Watch | None:
    """The watch for which `ensure` would do nothing; no host is asked, and nothing is locked."""
    found = _find(app, RemoteUrl.parse(url), ref)
    return found if found and not _needs_token(found, token) and found.selection.is_like(selection) else None


def _find(app: App, remote: RemoteUrl, ref: str) -> Watch | None:
    of_url = app.watches.filter(repository__clone_key=remote.clone_key, repository__ref=ref)
    return of_url.select_related("app", "repository").first()


def _begin(
    app: App, remote: RemoteUrl, token: str, ref: str, selection: Selection, *, renews: bool
) -> tuple[Watch, bool]:
    access.look(app, remote, token, ref)
    is_private = _is_private(app, remote, ref, token)
    with transaction.atomic():
        if not hold_app(app):
            raise AppGone
        repository = _repository(remote, ref, is_private=is_private)
        existing = repository.watches.select_for_update().filter(app=app)
        if not renews and (made := existing.first()):  # another request has begun it meanwhile
            made.app, made.repository = app, repository
            _choose(made, selection)
            if _needs_token(made, token):
                _use_token(made, token)
            return made, False
        # The watch's row is locked first: nobody ends or changes the hook between here and its return.
        hook = Hook.objects.filter(watch__in=list(existing)).first()
        _forget(existing)
        if 0 < settings.MAX_WATCHES_PER_APP <= app.watches.count():
            raise TooManyWatches(settings.MAX_WATCHES_PER_APP)
        made = Watch.objects.create(
            app=app,
            repository=repository,
            token=token,
            access_proven_at=timezone.now(),
            **asdict(selection),
        )
        if hook:  # it went with the old watch; the git host goes on calling it
            hook.watch = made
            hook.save(force_insert=True)
        request_snapshot(repository)
    return made, True


def change_options(app: App, repository_id: str, **options: Any) -> Watch:
    """Choose other files from now on: `include`, `exclude`, `max_file_size`, as far as they are given."""
    with held_watch(app, repository_id) as watch:
        _choose(watch, replace(watch.selection, **options))
    return watch


def change_token(app: App, repository_id: str, token: str) -> None:
    """Use another token from now on; what was delivered stays delivered."""
    _check_token(watch_of(app, repository_id), token)
    with held_watch(app, repository_id) as watch:
        _use_token(watch, token)


def drop_token(app: App, repository_id: str) -> None:
    """Read the repository without a token from now on; TokenNeeded if that is not possible."""
    watch = watch_of(app, repository_id)
    if not watch.token:
        return
    remote, ref = watch.repository.remote, watch.repository.ref
    try:
        access.look(app, remote, "", ref)
    except AccessDenied:
        raise TokenNeeded from None
    is_private = _is_private(app, remote, ref)
    with held_watch(app, repository_id) as watch:
        Repository.objects.filter(pk=watch.repository_id).update(is_private=is_private)
        _use_token(watch, "")


def _adjust(found: Watch, token: str, selection: Selection) -> Watch:
    needs_token = _needs_token(found, token)
    if needs_token:
        _check_token(found, token)
    with held_watch(found.app, found.repository.public_id) as watch:
        _choose(watch, selection)
        if needs_token:
            _use_token(watch, token)
    return watch


def _needs_token(watch: Watch, token: str) -> bool:
    """Another token, or the one that was refused: it may be accepted by now."""
    return bool(token) and (token != watch.token or watch.access_denied_at is not None)


def _check_token(watch: Watch, token: str) -> None:
    try:
        clones.look(clones.Remote(url=watch.repository.remote, token=token), watch.repository.ref)
    except AccessDenied:
        raise TokenRefused from None


def _choose(watch: Watch, selection: Selection) -> None:
    if not watch.selection.is_like(selection):
        watch_state.choose(watch, selection)
        # In whichever lane the app is: a run in the wrong one moves over.
        messages.deliver(watch.pk, lane=queue.DELIVERIES)
        watch.refresh_from_db(fields=[*_OPTIONS, *_STATE])


def _use_token(watch: Watch, token: str) -> None:
    accepted = {"token": token, "access_proven_at": timezone.now(), "access_denied_at": None}
    watch_state.start_over(Watch.objects.filter(pk=watch.pk), **accepted)
    circuit.reset(watch.repository)
    request_snapshot(watch.repository)
    watch.refresh_from_db(fields=_STATE)


def unwatch(app: App, repository_id: str) -> None:
    """Forget the watch and all that was delivered for it; the last watch takes clone and repository with it."""
    with _locked(app, repository_id) as repository:
        if not _forget(repository.watches.filter(app=app)):
            raise NotWatched
        _drop_if_unwatched(repository)


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


def reset_circuit(repository: Repository) -> None:
    """Forget the failures and look at once."""
    with transaction.atomic():
        circuit.reset(repository)
        request_snapshot(repository)


def reclone(repository: Repository) -> None:
    """Make the clone anew; the old one serves until the new one is complete."""
    with transaction.atomic():
        Repository.objects.filter(pk=repository.pk).update(needs_repair=True)
        request_snapshot(repository)


def purge(repository: Repository) -> None:
    """End every watch; with the last one, the repository and its clone go."""
    for watch in repository.watches.select_related("app"):
        with suppress(NotWatched):
            unwatch(watch.app, repository.public_id)


def shares_clone(repository: Repository) -> bool:
    """Whether its clone is that of another ref too, and so stays when this one goes."""
    return Repository.objects.filter(clone_key=repository.clone_key).exclude(pk=repository.pk).exists()


def ask_for_snapshot(repository: Repository) -> None:
    """Look at the repository because somebody wants it now: an open circuit does not keep it waiting."""
    with transaction.atomic():
        circuit.skip_cooldown(repository)
        request_snapshot(repository)


def notice_change(repository_id: int) -> None:
    """The repository seems to have changed. The snapshot of the next look is dated by the first notice before it."""
    Repository.objects.filter(pk=repository_id, noticed_at=None).update(noticed_at=timezone.now())


def request_snapshot(repository: Repository, *, planned: bool = False) -> None:
    messages.take_snapshot(repository.pk, planned=planned)


def _repository(remote: RemoteUrl, ref: str, *, is_private: bool) -> Repository:
    repository, made = Repository.objects.select_for_update(no_key=True).get_or_create(
        clone_key=remote.clone_key,
        ref=ref,
        defaults={"url": str(remote), "owner": remote.owner, "name": remote.name, "is_private": is_private},
    )
    if not made:
        Repository.objects.filter(pk=repository.pk).update(is_private=is_private, next_check_at=timezone.now())
        circuit.note_sighting(repository)
    return repository


def _is_private(app: App, remote: RemoteUrl, ref: str, token: str = "") -> bool:
    """Whether the repository cannot be read without a token. Asked only if the app has one, or a grant.

    It is shown and decides nothing, so a host that does not say it keeps nobody from watching. The
    repository is then private, unless it is known as public.
    """
    if not token and not github_app.granted(remote, [app.pk]):
        return False
    try:
        clones.look(clones.Remote(url=remote), ref)
    except AccessDenied:
        return True
    except GitError:
        return not Repository.objects.filter(clone_key=remote.clone_key, is_private=False).exists()
    return False


def is_watching(app: App, url: str, ref: str) -> bool:
    return _find(app, RemoteUrl.parse(url), ref) is not None


def watch_of(app: App, repository_id: str) -> Watch:
    """This app's watch of that repository. Another app's watch answers as if it did not exist."""
    if not _PUBLIC_ID.fullmatch(repository_id):
        raise NotWatched
    try:
        return Watch.objects.select_related("app", "repository").get(app=app, repository__public_id=repository_id)
    except Watch.DoesNotExist:
        raise NotWatched from None


@contextmanager
def held_watch(app: App, repository_id: str) -> Iterator[Watch]:
    """A transaction in which nobody else changes this app's watch, or ends it."""
    with _locked(app, repository_id) as repository:
        watch = repository.watches.select_for_update().filter(app=app).first()
        if watch is None:
            raise NotWatched
        watch.app, watch.repository = app, repository
        yield watch


def hold_app(app: App) -> bool:
    """Lock the app's row, before any other: an app that is being deleted cannot watch. False if it is gone."""
    return App.objects.select_for_update(no_key=True).filter(pk=app.pk).values("pk").first() is not None


def hold_watch(watch_id: int) -> bool:
    """Lock the watch's row, before all that belongs to it, so that no two can deadlock. False if it has ended."""
    return Watch.objects.select_for_update().filter(pk=watch_id).values("pk").first() is not None


@contextmanager
def _locked(app: App, repository_id: str) -> Iterator[Repository]:
    """A transaction that holds the row of a repository that the app watches, always before any of its watches' rows.

    `no_key`, because PostgreSQL checks the foreign keys of a row that a transaction writes twice: a run that holds the
    watch's row asks for a share of the repository's key, and would wait for us while we wait for it.
    Another app's repository is not even locked, so that the time of the answer does not tell whether it exists.
    """
    if not _PUBLIC_ID.fullmatch(repository_id):
        raise NotWatched
    with transaction.atomic():
        rows = Repository.objects.select_for_update(of=("self",), no_key=True)
        repository = rows.filter(public_id=repository_id, watches__app=app).first()
        if repository is None:
            raise NotWatched
        yield repository


def _forget(watches: QuerySet[Watch]) -> int:
    """Delete at most one watch with all that hangs on it; returns how many there were.

    Its row is locked first. A delivery run writes under that lock, so it either comes before or finds no watch.
    """
    ids = list(watches.select_for_update().values_list("pk", flat=True))
    Watch.objects.filter(pk__in=ids).delete()
    for job_id in (job_id for watch_id in ids for job_id in messages.jobs_of_watch(watch_id)):
        queue.drop(job_id)
    return len(ids)


def _drop_if_unwatched(repository: Repository) -> None:
    if repository.watches.exists():
        return
    repository_id = repository.pk
    for job_id in messages.jobs_of_repository(repository_id):
        queue.drop(job_id)
    repository.delete()
    if not shares_clone(repository):
        messages.purge_clone(repository.clone_key, repository_id=repository_id)
