"""An app's own webhooks: what was sent, what came back, and sending again."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from django.db.models import Q
from django.http import HttpRequest
from ninja import Field, Query, Router, Schema, Status
from pydantic import AfterValidator, AwareDatetime

from docora.api.auth import app_of
from docora.api.schemas import REFUSED, UNKNOWN, Cursor, Limit, Message
from repositories.base import cursors
from repositories.errors import InvalidCursor, NoSuchDelivery
from repositories.watches import held_watch, watch_of
from snapshots.delivery import redelivery
from snapshots.models import NOT_ACCEPTED, Delivery

router = Router(tags=["deliveries"])

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time that UTC does not have") from None


Event = Literal["create", "update", "delete", "sync_failed", "sync_recovered", "sync_complete"]
Moment = Annotated[AwareDatetime, AfterValidator(_in_utc)]


class DeliveryAttempt(Schema):
    delivery_id: int
    id: int = Field(description="The older name of `delivery_id`.", json_schema_extra={"deprecated": True})
    message_id: str = Field(description="The same for every attempt at one message: its `webhook-id`.")
    event: str
    path: str | None
    piece: int | None = Field(description="Which piece of a file that goes in pieces, from 1; nothing: the whole file.")
    pieces: int | None = Field(description="How many pieces the file goes in.")
    sha: str | None
    commit_sha: str | None
    status: int | None = Field(description="The HTTP status of the answer; nothing: there was none.")
    accepted: bool
    error: str | None
    answer: str | None = Field(description="The beginning of the body of the answer.")
    milliseconds: int
    attempted_at: datetime

    @classmethod
    def of(cls, delivery: Delivery) -> "DeliveryAttempt":
        return cls(
            delivery_id=delivery.pk,
            id=delivery.pk,
            message_id=delivery.message_id,
            event=delivery.event,
            path=delivery.path or None,
            piece=delivery.piece or None,
            pieces=delivery.pieces or None,
            sha=delivery.sha256 or None,
            commit_sha=delivery.commit_sha or None,
            status=delivery.status,
            accepted=delivery.was_accepted,
            error=delivery.error or None,
            answer=delivery.answer or None,
            milliseconds=delivery.milliseconds,
            attempted_at=delivery.attempted_at,
        )


class DeliveryPage(Schema):
    deliveries: list[DeliveryAttempt]
    next_cursor: str | None


@router.get("/repositories/{repository_id}/deliveries", response={200: DeliveryPage, **REFUSED})
def list_deliveries(
    request: HttpRequest,
    repository_id: str,
    path: Annotated[
        str, Query(max_length=10_000, pattern=r"^[^\x00]*$", description="Only attempts about this path.")
    ] = "",
    event: Annotated[Event | None, Query(description="Only attempts of this kind.")] = None,
    status: Annotated[int | None, Query(ge=100, le=599, description="Only attempts with this answer.")] = None,
    failed: Annotated[bool, Query(description="Only attempts that were not acknowledged.")] = False,
    since: Annotated[Moment | None, Query(description="Only attempts at this time or later.")] = None,
    until: Annotated[Moment | None, Query(description="Only attempts before this time.")] = None,
    cursor: Cursor = "",
    limit: Limit = 100,
) -> dict[str, Any]:
    """Every attempt to tell the app something about the repository, newest first."""
    attempts = watch_of(app_of(request), repository_id).deliveries.order_by("-attempted_at", "-pk")
    wanted = {"path": path, "event": event, "status": status, "attempted_at__gte": since, "attempted_at__lt": until}
    attempts = attempts.filter(**{name: value for name, value in wanted.items() if value})
    if failed:
        attempts = attempts.filter(NOT_ACCEPTED)
    if cursor:
        attempts = attempts.filter(_older(cursor))
    page = list(attempts[: limit + 1])
    return {
        "deliveries": [DeliveryAttempt.of(delivery) for delivery in page[:limit]],
        "next_cursor": _cursor_after(page[limit - 1]) if len(page) > limit else None,
    }


def _cursor_after(delivery: Delivery) -> str:
    return cursors.encode("deliveries", (delivery.attempted_at - _EPOCH) // _MICROSECOND, delivery.pk)


def _older(cursor: str) -> Q:
    _, (microseconds, pk) = cursors.decode(cursor, count=2)
    try:
        moment = _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise InvalidCursor from None
    # Not "earlier, or at the same time with a smaller id": SQLite answers OR by reading both sides to their end.
    return Q(attempted_at__lte=moment) & (Q(attempted_at__lt=moment) | Q(pk__lt=pk))


@router.post(
    "/repositories/{repository_id}/deliveries/{int:delivery_id}/redeliver",
    response={202: Message, **UNKNOWN},
)
def redeliver(request: HttpRequest, repository_id: str, delivery_id: int) -> Status[Message]:
    """Tell it again: the path of that delivery, with what it contains now."""
    with held_watch(app_of(request), repository_id) as watch:
        delivery = watch.deliveries.filter(pk=delivery_id).first()
        if delivery is None:
            raise NoSuchDelivery
        redelivery.redeliver(delivery)
    return Status(202, Message(message="Queued"))
