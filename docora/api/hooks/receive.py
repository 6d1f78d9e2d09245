"""POST /hooks/{id}: a git host tells of a push. Verified first, then read, then a look is asked for.

The answer waits for nothing but one read of the database and Redis, and for Redis no longer than one command may take:
the first that fails is the answer. An unknown id and a wrong proof are answered alike, after the same work.

A body of ordinary size is verified before the limits are looked at: that costs less than asking for them, and they are
asked for together with all else that Redis does for a hook (`arrivals`). Nothing large is read before.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus

import redis
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.http import require_POST

from docora.api.hooks import arrivals, events
from docora.api.hooks.proofs import Proofs
from docora.api.problems import busy, problem
from docora.limits import rate
from docora.limits.client_address import client_address
from repositories import hooks, messages
from repositories.base import queue
from repositories.errors import QueueUnavailable, RateLimited
from repositories.hooks import OpenHook, Push

log = logging.getLogger("docora.hooks")

# GitHub sends no larger ones.
_MOST_BYTES = 25 << 20
_ORDINARY_BYTES = 64 << 10
_PIECE = 64 << 10
# An app knows the secret of its own hook and could send what takes a hundred times its size in memory when it is
# parsed. A larger push is not read: the repository is known, so the look is asked for all the same.
_MOST_PARSED_OF_AN_APP = 1 << 20
# Seconds that a git host may take to send the body.
_PATIENCE = 10.0

# What an unknown id is checked against, so that it takes as long as a known one.
_NO_HOOK = OpenHook(public_id="unknown", secrets=[secrets.token_urlsafe(44), secrets.token_urlsafe(44)])


@require_POST
def receive(request: HttpRequest, hook_id: str) -> HttpResponse:
    try:
        return _too_long(request) or _receive(request, hook_id)
    except RateLimited as error:
        return busy(HTTPStatus.TOO_MANY_REQUESTS, str(error), error.code, retry_after=error.retry_after)
    except UnreadablePostError:
        return problem(HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive.", "body-incomplete")
    except (redis.RedisError, DatabaseError) as error:
        log.warning("A hook was answered with 503: %s", error)
        unavailable = QueueUnavailable()
        return busy(
            HTTPStatus.SERVICE_UNAVAILABLE, str(unavailable), unavailable.code, retry_after=unavailable.retry_after
        )


def _too_long(request: HttpRequest) -> HttpResponse | None:
    if "Transfer-Encoding" in request.headers:
        return problem(HTTPStatus.LENGTH_REQUIRED, "A body needs a Content-Length.", "length-required")
    length = request.headers.get("Content-Length") or "0"
    if not length.isdecimal() or int(length) > _MOST_BYTES:
        return problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"A body may have {_MOST_BYTES} bytes.", "body-too-large")
    return None


def _receive(request: HttpRequest, hook_id: str) -> HttpResponse:
    address = client_address(request)
    is_large = int(request.headers.get("Content-Length") or 0) > _ORDINARY_BYTES
    wait = rate.check_hook(address, hook_id, through=queue.impatient_connection()) if is_large else 0.0
    hook = hooks.find(hook_id) or _NO_HOOK
    event = events.event_of(request.headers)
    take_in = partial(arrivals.take_in, hook, address, event=event)
    body = _verified_body(request, hook)
    if body is None or hook is _NO_HOOK:
        take_in(outcome="refused", error="The proof is missing or wrong.", proven=False)
        return problem(HTTPStatus.UNAUTHORIZED, "There is no such hook, or the proof is wrong.", "wrong-proof")
    if wait:
        raise RateLimited(wait)
    content_type = request.content_type or ""
    try:
        if hook.host and events.is_about_installations(event):
            owner = events.read_owner(body, content_type)
            is_for_us = bool(owner) and hooks.is_of_github_app(hook)
            take_in(outcome="accepted" if is_for_us else "ignored")
            if is_for_us:
                _recheck(owner)
        else:
            repositories = hooks.concerned(hook, _push(hook, event, body, content_type))
            is_for_us = bool(repositories)
            ask_for_looks = take_in(outcome="accepted" if is_for_us else "ignored", hint_at=repositories)
            if is_for_us:
                return _Accepted(ask_for_looks)
    except events.Malformed as error:
        take_in(outcome="refused", error=str(error))
        return problem(HTTPStatus.BAD_REQUEST, str(error), "malformed")
    return HttpResponse(status=HTTPStatus.ACCEPTED if is_for_us else HTTPStatus.NO_CONTENT)


class _Accepted(HttpResponse):
    """The hints are written down. The looks are asked for when the git host has this answer."""

    def __init__(self, ask_for_looks: Callable[[], None]) -> None:
        super().__init__(status=HTTPStatus.ACCEPTED)
        self._ask_for_looks = ask_for_looks

    def close(self) -> None:
        super().close()
        try:
            self._ask_for_looks()
        except redis.RedisError as error:
            log.warning("The look that a hook has hinted at is left to the next hook or planned look: %s", error)


def _recheck(owner: str) -> None:
    """Nothing of the hook is believed but that a look is worth it: a worker asks what the GitHub App may read now."""
    with queue.without_waiting():
        messages.recheck_owner(owner)


def _push(hook: OpenHook, event: str, body: bytes, content_type: str) -> Push:
    if not events.is_push(event):
        return Push(refs=frozenset())
    if hook.repository and len(body) > _MOST_PARSED_OF_AN_APP:
        return Push()
    return events.read_push(body, content_type)


def _verified_body(request: HttpRequest, hook: OpenHook) -> bytes | None:
    """None if the proof is wrong. Of a hook that an app has made, no more is kept than is parsed."""
    kept = _MOST_BYTES if hook.host else _MOST_PARSED_OF_AN_APP + 1
    # Always two, so that the time does not tell that a secret was changed lately.
    proofs = Proofs(request.headers, [*hook.secrets, *_NO_HOOK.secrets][:2])
    body = bytearray()
    for piece in _pieces(request):
        proofs.update(piece)
        body += piece[: kept - len(body)]
    return bytes(body) if proofs.hold() else None


def _pieces(request: HttpRequest) -> Iterator[bytes]:
    deadline = time.monotonic() + _PATIENCE
    if connection := request.META.get("gunicorn.socket"):
        connection.settimeout(_PATIENCE)  # without it a body that never comes would keep this thread for ever
    while piece := request.read(_PIECE):
        yield piece
        if time.monotonic() > deadline:
            raise UnreadablePostError
