"""What changed, for apps that pull instead of waiting for webhooks."""

from typing import Annotated, Any

from django.http import HttpRequest
from ninja import Field, Query, Router, Schema

from docora.api.auth import app_of
from docora.api.files import READING, NamedFile, facts
from docora.api.reading import readable_watch
from docora.api.schemas import CURSOR, Limit
from docora.limits import seats
from repositories.models import Repository
from snapshots import feed

router = Router(tags=["repositories"])


class ChangeFacts(NamedFile):
    sha: str | None = Field(description="Of a deletion: what the file contained last, unless it was too large.")
    event: feed.Event
    previous_sha: str | None = Field(description="What an update replaces.")
    commit_sha: str


class ChangePage(Schema):
    changes: list[ChangeFacts]
    cursor: str = Field(description="Give it as `since` to go on from here, now or in some days.")
    has_more: bool = Field(description="There is more to be read already.")


@router.get("/repositories/{repository_id}/changes", response={200: ChangePage, **READING})
def list_changes(
    request: HttpRequest,
    repository_id: str,
    since: Annotated[str, Query(**CURSOR, description="`cursor` of the answer before.")] = "",
    wait: Annotated[int, Query(ge=0, le=30, description="Seconds to wait while there is nothing new.")] = 0,
    limit: Limit = 500,
) -> dict[str, Any]:
    """What changed, to be pulled instead of waiting for webhooks.

    Without `since`: every file of the newest snapshot as created, page by page, and then each change. A page
    may be empty although there is more. The answer to `wait` may come early, and empty.
    """
    watch = readable_watch(app_of(request), repository_id)
    page = feed.changes(watch, since, limit)
    if page.is_last and not page.items:
        newest = Repository.objects.filter(pk=watch.repository_id)
        seats.wait_until(lambda: not newest.filter(sequence=watch.repository.sequence).exists(), seconds=wait)
        watch = readable_watch(app_of(request), repository_id)
        page = feed.changes(watch, since, limit)
    return {
        "changes": [_change(page, item) for item in page.items],
        "cursor": feed.cursor_for(watch, page.following),
        "has_more": not page.is_last,
    }


def _change(page: feed.Page, item: feed.Item) -> dict[str, Any]:
    previous = item.previous.hex() or None
    return {**facts(item), "event": item.event, "previous_sha": previous, "commit_sha": page.commit_of(item)}
