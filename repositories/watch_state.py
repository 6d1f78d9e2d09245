"""The state of a watch. Each transition is a function here; no other module writes `status`.

    pending_snapshot --begin--> scanning --complete--> synced
       ^                           |
       |<------- put_back ---------|   the worker stopped for a while, or died
       |<------- put_off ----------|   a failed attempt; `failed` after MAX_RETRY_ATTEMPTS of them
       |
       start_over                      from any state: a new token, an enabled app, something to tell again
       choose                          the same, when other files are chosen

`failed` is not final: the next success makes it `synced`. A watch whose own token is refused stays `failed` until the
token is accepted again.
"""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.models import F, Q, QuerySet
from django.utils import timezone

from repositories.errors import AccessDenied, DeliveryFailed, DocoraError, EndpointDisabled, sentence_for
from repositories.models import Watch, WatchStatus
from repositories.selection import Selection

_NO_FAILURE: dict[str, Any] = {"retry_count": 0, "retry_at": None, "last_error_code": "", "last_error": ""}
_SYNCED: dict[str, Any] = _NO_FAILURE | {"status": WatchStatus.SYNCED}
_BEHIND = Q(synced_sequence__lt=F("repository__sequence")) | Q(asked_again=True, repository__sequence__gt=0)


def behind(watches: QuerySet[Watch]) -> QuerySet[Watch]:
    """Watches whose app is to be told something: a newer snapshot, or what somebody asked to be told again."""
    return watches.filter(_BEHIND)


def is_behind(watch: Watch, sequence: int) -> bool:
    """The same of one watch, when its repository's newest snapshot has this number; 0 if there is none."""
    return watch.synced_sequence < sequence or (watch.asked_again and sequence > 0)


def is_between_commits(watch: Watch) -> bool:
    """The app had all of an earlier snapshot, and not yet all of the newest: some of its files may be older."""
    return 0 < watch.synced_sequence < watch.repository.sequence


def up_to_date(watches: QuerySet[Watch]) -> QuerySet[Watch]:
    """All others: their apps have everything, or there is nothing yet."""
    return watches.filter(~_BEHIND)


def failing() -> Q:
    """Out of attempts, also while the next attempt runs: only a success ends it."""
    return Q(status=WatchStatus.FAILED) | Q(retry_count__gte=settings.MAX_RETRY_ATTEMPTS)


def start_over(watches: QuerySet[Watch], **changes: Any) -> int:
    """All attempts again, and no error; returns how many watches there were."""
    return watches.update(**_NO_FAILURE, status=WatchStatus.PENDING, **changes)


def choose(watch: Watch, selection: Selection) -> None:
    """Other files are chosen: every file is compared with what the app has, and only the difference is told.

    A watch whose token is refused keeps its reason.
    """
    changes: dict[str, Any] = {
        **asdict(selection),
        "synced_sequence": 0,
        "restarts": F("restarts") + 1,
        # A file that is chosen again is a new message: a receiver may remember the id of the first one.
        "resyncs": F("resyncs") + 1,
    }
    row = Watch.objects.filter(pk=watch.pk)
    if not start_over(row.filter(access_denied_at=None), **changes):
        row.update(**changes)


def compare_anew(watches: QuerySet[Watch]) -> None:
    """What changed since these apps were in sync is not known any more: the next delivery compares every file with what
    the app has, and tells the difference."""
    watches.update(synced_sequence=0, restarts=F("restarts") + 1)


def begin(watches: QuerySet[Watch]) -> None:
    """A worker is fetching or delivering for the watches that waited for it."""
    watches.filter(status=WatchStatus.PENDING).update(status=WatchStatus.SCANNING)


def begin_delivery(watch: Watch, *, sequence: int) -> None:
    """Also from `failed` and `synced`: a snapshot is being delivered. From now on the app may have any of it."""
    begun = (WatchStatus.SCANNING, sequence, watch.selection.as_json)
    if (watch.status, watch.begun_sequence, watch.begun_selection) != begun:
        status, sequence, selection = begun
        Watch.objects.filter(pk=watch.pk).update(status=status, begun_sequence=sequence, begun_selection=selection)


def end_delivery(watch: Watch) -> None:
    """The delivery stops before its end, but all that it sent is answered and written down.

    `watch` is as it was when the delivery began: what was unsure then stays so.
    """
    if not watch.begun_sequence:
        Watch.objects.filter(pk=watch.pk).update(begun_sequence=0)


def put_back(watches: QuerySet[Watch]) -> int:
    """No worker works on these watches any more: they wait again. Returns how many there were."""
    return watches.filter(status=WatchStatus.SCANNING).update(status=WatchStatus.PENDING)


def complete(watch: Watch, *, sequence: int, commit_sha: str) -> bool:
    """The app has everything of this snapshot. False if somebody has asked for something else meanwhile."""
    return bool(
        Watch.objects.filter(pk=watch.pk, generation=watch.generation, restarts=watch.restarts).update(
            **_SYNCED,
            asked_again=False,
            begun_sequence=0,
            synced_sequence=sequence,
            synced_commit=commit_sha,
            synced_at=timezone.now(),
            step={},
        )
    )


def settle(watches: QuerySet[Watch], *, is_empty: bool = False) -> None:
    """Watches that lack nothing are synced, whatever failed in between. An empty repository has nothing to lack."""
    lacking_nothing = up_to_date(watches).filter(access_denied_at=None)
    if not is_empty:
        lacking_nothing = lacking_nothing.filter(synced_sequence__gt=0)
    settled = lacking_nothing.exclude(status=WatchStatus.SYNCED)
    if settled.exists():  # reading waits for no lock, writing may
        settled.update(**_SYNCED)


def failures_in_a_row(watch: Watch, code: str) -> int:
    """Attempts that failed for this reason. Those of looks are no fault of the endpoint, and the reverse."""
    return watch.retry_count if watch.last_error_code == code else 0


def put_off(watch: Watch, error: DocoraError, *, attempts: int, until: datetime) -> None:
    """An attempt to deliver failed; the next one is not before `until`."""
    Watch.objects.filter(pk=watch.pk).update(
        status=_after(attempts),
        retry_count=attempts,
        retry_at=until,
        last_error_code=error.code,
        last_error=str(error),
    )


def note_repository_failure(watches: QuerySet[Watch], error: DocoraError, *, failures: int) -> None:
    """Every watch of a repository that cannot be read shows why. One whose own token or endpoint fails keeps its
    reason, and the count of its attempts."""
    kept = (DeliveryFailed.code, EndpointDisabled.code)
    watches.filter(access_denied_at=None).exclude(last_error_code__in=kept).update(
        status=_after(failures) if error.retriable else WatchStatus.FAILED,
        retry_count=failures,
        last_error_code=error.code,
        last_error=sentence_for(error.code),
    )


def refuse(watch: Watch, error: AccessDenied) -> bool:
    """The remote refuses the watch's token; True if it did not do so before."""
    # Not if the token was changed, or accepted, while the host was being asked.
    rows = Watch.objects.filter(pk=watch.pk, access_proven_at=watch.access_proven_at)
    reason = {"status": WatchStatus.FAILED, "last_error_code": error.code, "last_error": str(error)}
    if rows.filter(access_denied_at=None).update(access_denied_at=timezone.now(), **reason):
        return True
    rows.update(**reason)
    return False


def disable(watches: QuerySet[Watch], reason: str) -> None:
    """The app is disabled: no attempt is planned. A delivery under way stops at its next answer, because the generation
    has changed. A watch whose token is refused keeps its reason: that will be so when the app is enabled again."""
    watches.update(status=WatchStatus.FAILED, retry_at=None, generation=F("generation") + 1)
    watches.filter(access_denied_at=None).update(last_error_code=EndpointDisabled.code, last_error=reason)


def _after(attempts: int) -> WatchStatus:
    return WatchStatus.PENDING if attempts < settings.MAX_RETRY_ATTEMPTS else WatchStatus.FAILED
