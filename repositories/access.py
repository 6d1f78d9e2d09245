"""Which token may read a repository now, and which watch takes the blame when it may not."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet
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
    for token, watches in by_token(best_proven_first(repository.watches.all())).items():
        try:
            seen = _ask(repository, token, watches)
        except AccessDenied as error:
            blame(watches, error)
        else:
            yield seen


def best_proven_first(watches: QuerySet[Watch]) -> QuerySet[Watch]:
    """The ones with the newest proof first, refused ones last."""
    return watches.order_by(F("access_denied_at").asc(nulls_first=True), F("access_proven_at").desc(nulls_last=True))


def by_token(watches: Iterable[Watch]) -> dict[str, list[Watch]]:
    """Each token once, in the order of the watches, with those that share it."""
    shared: dict[str, list[Watch]] = {}
    for watch in watches:
        shared.setdefault(watch.token, []).append(watch)
    return shared


def valid_until(watch: Watch) -> datetime | None:
    """The end of the last proof. What Docora learned later, this app may not see. None if its token is refused."""
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
        _ask(watch.repository, watch.token, [watch])
    except RefNotFound:
        # The host accepted the token; what was read of the branch before it went may be sent.
        _note_proof([watch], at=asked_at)
    except AccessDenied as error:
        blame([watch], error)
        raise
    if Watch.objects.filter(pk=watch.pk, access_denied_at__isnull=False).exists():
        raise AccessDenied("The host refused the token to another process in the meantime.")


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


def _ask(repository: Repository, token: str, watches: list[Watch]) -> Seen:
    remote = Remote(url=repository.remote, token=token)
    asked_at = timezone.now()
    tip = clones.look(remote, repository.ref)
    _note_proof(watches, at=asked_at)
    return Seen(tip=tip, remote=remote, watches=tuple(watches))


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


def _note_proof(watches: list[Watch], *, at: datetime) -> None:
    """An unchanged repository costs no row: a proof is written down when the last one has aged.

    It is as old as the question. The answer may have been under way for long: a refusal since then stays.
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
