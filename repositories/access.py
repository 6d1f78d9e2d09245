"""Which token may read a repository now, and which watch takes the blame when it may not."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from repositories import github_app, messages, watch_state
from repositories.errors import AccessDenied, GitError, HostUnavailable, RefNotFound
from repositories.git import clones
from repositories.git.clones import Remote, Tip
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository, Watch


@dataclass(frozen=True, slots=True)
class Credential:
    """What a watch reads with: its own token (empty: none), or a token of the operator's GitHub App."""

    token: str = ""
    is_granted: bool = False

    def token_at(self, remote: RemoteUrl) -> str:
        return github_app.token_of_installation(remote) if self.is_granted else self.token


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The remote's tip (None: an empty repository), and the remote with the token that saw it."""

    tip: Tip | None
    remote: Remote
    watches: tuple[Watch, ...]


def accepted_tokens(repository: Repository) -> Iterator[Seen]:
    """What each accepted token sees, the best proven first. The watches of a refused one fail, and no others."""
    unanswered: HostUnavailable | None = None
    for credential, watches in by_credential(repository, best_proven_first(repository.watches.all())).items():
        try:
            credential.token_at(repository.remote)
        except HostUnavailable as error:  # only the GitHub App's API: another watch may have a token of its own
            unanswered = error
            continue
        try:
            seen = _ask(repository, credential, watches)
        except AccessDenied as error:
            blame(watches, error)
        else:
            yield seen
    if unanswered:
        raise unanswered


def best_proven_first(watches: QuerySet[Watch]) -> QuerySet[Watch]:
    """The ones with the newest proof first, refused ones last."""
    return watches.order_by(F("access_denied_at").asc(nulls_first=True), F("access_proven_at").desc(nulls_last=True))


def by_credential(repository: Repository, watches: Iterable[Watch]) -> dict[Credential, list[Watch]]:
    """Each credential once, in the order of the watches, with those that share it."""
    watches = list(watches)
    without_token = [watch.app_id for watch in watches if not watch.token]
    granted = github_app.granted(repository.remote, without_token) if without_token else set()
    shared: dict[Credential, list[Watch]] = {}
    for watch in watches:
        is_granted = not watch.token and watch.app_id in granted
        shared.setdefault(Credential(watch.token, is_granted), []).append(watch)
    return shared


def look(app: App, remote: RemoteUrl, token: str, ref: str) -> Tip | None:
    """The tip as this app would see it: with the token, or without one through the GitHub App if it has a grant."""
    credential = Credential(token, not token and bool(github_app.granted(remote, [app.pk])))
    return _look(remote, credential, ref)[1]


def valid_until(watch: Watch) -> datetime | None:
    """When the proof of access expires; the app is shown no later snapshot. None if its token is refused."""
    if watch.access_denied_at or not watch.access_proven_at:
        return None
    return watch.access_proven_at + timedelta(seconds=settings.ACCESS_PROOF_AGE)


def is_proven(watch: Watch) -> bool:
    until = valid_until(watch)
    return until is not None and until > timezone.now()


def prove(watch: Watch) -> None:
    """Make sure that this watch's own token was accepted recently; AccessDenied if it is refused."""
    if is_proven(watch):
        return
    asked_at = timezone.now()
    try:
        _ask(watch.repository, _credential_of(watch), [watch])
    except RefNotFound:
        # The host accepted the token; what was read of the branch before it went may be sent.
        _note_accepted([watch], at=asked_at)
    except AccessDenied as error:
        blame([watch], error)
        raise
    if Watch.objects.filter(pk=watch.pk, access_denied_at__isnull=False).exists():
        raise AccessDenied("The host refused the token to another process in the meantime.")


def recheck_refused_tokens(repository: Repository) -> None:
    """Is a refused token accepted again? A watch that lacks something is skipped: its delivery asks by itself."""
    for watch in watch_state.up_to_date(repository.watches.filter(access_denied_at__isnull=False)):
        with suppress(GitError):
            _ask(repository, _credential_of(watch), [watch])


def blame(watches: Iterable[Watch], error: AccessDenied) -> None:
    """These watches fail, and no others. Each app is told once, when the refusals begin."""
    for watch in watches:
        if watch_state.refuse(watch, error):
            messages.announce_refusal(watch.pk)


def forget_proofs(watches: QuerySet[Watch]) -> None:
    """Each must be proven again before anything is sent or shown; a delivery under way stops at its next answer."""
    watches.update(access_proven_at=None, generation=F("generation") + 1)


def _credential_of(watch: Watch) -> Credential:
    (credential,) = by_credential(watch.repository, [watch])
    return credential


def _ask(repository: Repository, credential: Credential, watches: list[Watch]) -> Seen:
    asked_at = timezone.now()
    remote, tip = _look(repository.remote, credential, repository.ref)
    _note_accepted(watches, at=asked_at)
    return Seen(tip=tip, remote=remote, watches=tuple(watches))


def _look(url: RemoteUrl, credential: Credential, ref: str) -> tuple[Remote, Tip | None]:
    remote = Remote(url=url, token=credential.token_at(url))
    try:
        return remote, clones.look(remote, ref)
    except AccessDenied:
        if not credential.is_granted:
            raise
    # GitHub may have withdrawn the kept token since it was made: only a new one that is refused counts.
    github_app.forget_token(url)
    remote = Remote(url=url, token=credential.token_at(url))
    return remote, clones.look(remote, ref)


def note_proofs(watches: Iterable[Watch], *, at: datetime) -> None:
    """The host accepted these watches' tokens at that time. Not written for a watch that was refused, or proven with
    another token, since it was read; nor where a row is locked: the next look brings another proof."""
    aged = [watch for watch in watches if _has_aged(watch)]
    if not aged:
        return
    with transaction.atomic(savepoint=False):
        rows = Watch.objects.select_for_update(skip_locked=True).filter(pk__in=[watch.pk for watch in aged])
        proofs = dict(rows.filter(access_denied_at=None).values_list("pk", "access_proven_at"))
        same = [watch.pk for watch in aged if proofs.get(watch.pk, at) == watch.access_proven_at]
        Watch.objects.filter(pk__in=same).update(access_proven_at=at)


def _note_accepted(watches: list[Watch], *, at: datetime) -> None:
    """The host has just accepted these watches' token, which ends an earlier refusal.

    The proof is dated by the question, because the answer may have taken long; a refusal since then stays. It is
    written only when the last one has aged, so an unchanged repository costs no row.
    """
    stale = [watch for watch in watches if watch.access_denied_at or _has_aged(watch)]
    for watch in stale:
        watch.access_proven_at, watch.access_denied_at = at, None
    if stale:
        rows = Watch.objects.filter(pk__in=[watch.pk for watch in stale]).exclude(access_denied_at__gt=at)
        rows.exclude(access_proven_at__gt=at).update(access_proven_at=at, access_denied_at=None)


def _has_aged(watch: Watch) -> bool:
    aged = timezone.now() - timedelta(seconds=settings.ACCESS_PROOF_AGE / 2)
    return watch.access_proven_at is None or watch.access_proven_at < aged
