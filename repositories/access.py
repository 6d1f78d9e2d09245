"""Which token may read a repository now, and which watch takes the blame when it may not."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from django.conf import settings
from django.db.models import F
from django.utils import timezone

from repositories import messages, watch_state
from repositories.errors import AccessDenied, GitError, RefNotFound
from repositories.git import clones
from repositories.git.clones import Remote, Tip
from repositories.models import Repository, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The remote's tip (None: an empty repository), and the remote with the token that saw it."""

    tip: Tip | None
    remote: Remote
    watches: tuple[Watch, ...]


def accepted_tokens(repository: Repository) -> Iterator[Seen]:
    """What each accepted token sees, the best proven first. The watches of a refused one fail, and no others."""
    for token, watches in _tokens(repository):
        try:
            seen = _ask(repository, token, watches)
        except AccessDenied as error:
            blame(watches, error)
        else:
            yield seen


def prove(watch: Watch) -> None:
    """Make sure that this watch's own token was accepted recently; AccessDenied if it is refused."""
    recently = timezone.now() - timedelta(seconds=settings.ACCESS_PROOF_AGE)
    if watch.access_proven_at and watch.access_proven_at > recently and not watch.access_denied_at:
        return
    try:
        _ask(watch.repository, watch.token, [watch])
    except RefNotFound:
        _note_proof([watch])  # the host accepted the token; what was read of the branch before it went may be sent
    except AccessDenied as error:
        blame([watch], error)
        raise


def recheck_refused_tokens(repository: Repository) -> None:
    """Is a refused token accepted again? A watch that lacks something is skipped: its delivery asks by itself."""
    refused = repository.watches.filter(access_denied_at__isnull=False, synced_sequence=repository.sequence)
    for watch in refused:
        with suppress(GitError):
            _ask(repository, watch.token, [watch])


def blame(watches: Iterable[Watch], error: AccessDenied) -> None:
    """These watches fail, and no others. Each app is told once, when the refusals begin."""
    for watch in watches:
        if watch_state.refuse(watch, error):
            messages.announce_refusal(watch.pk)


def _tokens(repository: Repository) -> Iterator[tuple[str, list[Watch]]]:
    """Each token once, with the watches that share it: the ones with the newest proof first, refused ones last."""
    order = (F("access_denied_at").asc(nulls_first=True), F("access_proven_at").desc(nulls_last=True))
    shared: dict[str, list[Watch]] = {}
    for watch in repository.watches.order_by(*order):
        shared.setdefault(watch.token, []).append(watch)
    yield from shared.items()


def _ask(repository: Repository, token: str, watches: list[Watch]) -> Seen:
    remote = Remote(url=repository.remote, token=token)
    tip = clones.look(remote, repository.ref)
    _note_proof(watches)
    return Seen(tip=tip, remote=remote, watches=tuple(watches))


def _note_proof(watches: list[Watch]) -> None:
    """An unchanged repository costs no row: a proof is written down when the last one has aged."""
    now = timezone.now()
    aged = now - timedelta(seconds=settings.ACCESS_PROOF_AGE / 2)
    stale = [w for w in watches if w.access_denied_at or not w.access_proven_at or w.access_proven_at < aged]
    for watch in stale:
        watch.access_proven_at, watch.access_denied_at = now, None
    if stale:
        Watch.objects.filter(pk__in=[w.pk for w in stale]).update(access_proven_at=now, access_denied_at=None)
