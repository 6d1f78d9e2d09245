"""The hook of a watch: make it, look at it, end it."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest
from ninja import Field, Router, Schema, Status

from docora.api.auth import app_of
from docora.api.schemas import UNKNOWN
from repositories import hooks
from repositories.models import Hook
from repositories.watches import held_watch, watch_of

router = Router(tags=["hooks"])


class HostFields(Schema):
    host: str
    where: str = Field(description="The page of the repository at the host.")
    fields: dict[str, str] = Field(description="What to fill in, by the names on that page.")


class NewHook(Schema):
    url: str
    secret: str = Field(description="Shown this once.")
    previous_secret_until: datetime | None = Field(
        description="Until then, the two secrets before this one count too. Each change sets it anew."
    )
    hosts: list[HostFields]


class LastDelivery(Schema):
    at: datetime
    id: str = Field(description="By which the host lists it among its deliveries, where it sends one.")
    event: str = Field(description="As the host calls it.")
    outcome: Literal["accepted", "ignored", "refused"]


class LastHookError(Schema):
    at: datetime
    message: str


class HookState(Schema):
    url: str
    created_at: datetime
    previous_secret_until: datetime | None
    accepted: int = Field(description="Hooks that asked for a look.")
    ignored: int = Field(description="Pings, tags, deletions, branches that are not watched.")
    refused: int = Field(description="Hooks whose proof was missing or wrong, or that could not be read.")
    last_delivery: LastDelivery | None
    last_error: LastHookError | None


@router.post("/repositories/{repository_id}/hook", response={201: NewHook, **UNKNOWN})
def make_hook(request: HttpRequest, repository_id: str) -> Status[NewHook]:
    """A URL and a secret for the push hook of the git host. Asking again gives a new secret for the same URL.

    The two secrets before it count for one more day, counted for both from this change. The hook ends with the watch.
    """
    with held_watch(app_of(request), repository_id) as watch:
        hook, secret = hooks.open_for(watch)
    url = _url(request, hook)
    return Status(
        201,
        NewHook(
            url=url, secret=secret, previous_secret_until=hook.previous_secret_until, hosts=fields_of_hosts(url, secret)
        ),
    )


@router.get("/repositories/{repository_id}/hook", response={200: HookState, **UNKNOWN})
def show_hook(request: HttpRequest, repository_id: str) -> HookState:
    """What has arrived at the hook lately."""
    hook = hooks.of(watch_of(app_of(request), repository_id))
    log = hooks.logs([hook.public_id])[hook.public_id]
    delivery: dict[str, Any] = {
        "at": log.last_at,
        "id": log.last_delivery,
        "event": log.last_event,
        "outcome": log.last_outcome,
    }
    return HookState(
        url=_url(request, hook),
        created_at=hook.created_at,
        previous_secret_until=hook.previous_secret_until,
        accepted=log.accepted,
        ignored=log.ignored,
        refused=log.refused,
        last_delivery=LastDelivery(**delivery) if log.last_at else None,
        last_error=LastHookError(at=log.last_error_at, message=log.last_error) if log.last_error_at else None,
    )


@router.delete("/repositories/{repository_id}/hook", response={204: None, **UNKNOWN})
def end_hook(request: HttpRequest, repository_id: str) -> Status[None]:
    """Nothing that arrives at the hook counts any more. Polling goes on."""
    hooks.close(hooks.of(watch_of(app_of(request), repository_id)))
    return Status(204, None)


def _url(request: HttpRequest, hook: Hook) -> str:
    return request.build_absolute_uri(f"/hooks/{hook.public_id}")


def fields_of_hosts(url: str, secret: str) -> list[HostFields]:
    """The same words as docs/hooks.md."""
    gitea = {
        "Target URL": url,
        "HTTP method": "POST",
        "POST content type": "application/json",
        "Secret": secret,
        "Trigger on": "Push events",
    }
    return [
        HostFields(
            host="GitHub",
            where="Settings → Webhooks → Add webhook",
            fields={
                "Payload URL": url,
                "Content type": "application/json",
                "Secret": secret,
                "Which events would you like to trigger this webhook?": "Just the push event.",
            },
        ),
        HostFields(
            host="GitLab",
            where="Settings → Webhooks → Add new webhook",
            fields={"URL": url, "Secret token (or Signing token)": secret, "Trigger": "Push events"},
        ),
        HostFields(host="Gitea", where="Settings → Webhooks → Add webhook → Gitea", fields=gitea),
        HostFields(host="Forgejo", where="Settings → Webhooks → Add webhook → Forgejo", fields=gitea),
        HostFields(
            host="Bitbucket",
            where="Repository settings → Webhooks → Add webhook",
            fields={"Title": "Docora", "URL": url, "Secret": secret, "Triggers": "Repository push"},
        ),
    ]
