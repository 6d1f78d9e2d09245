"""What a hook is answered: it is verified, then read, then taken in, and a look is asked for after the answer.

`receive` is the view of POST /hooks/{id}, where a git host tells of a push. Short hooks, which come in bursts, go the
same steps in `together`. The answer waits for nothing but one read of the database and Redis, and for Redis no longer
than one command may take; if either fails, it is 503. An unknown id and a wrong proof are answered alike, after the
same work.

A body of ordinary size is verified before the limits are looked at: that costs less than asking for them, and they are
asked for together with all else that Redis does for a hook (`arrivals`). Nothing large is read before.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus

import redis
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.views.decorators.http import require_POST

from docora.api.hooks import arrivals, events
from docora.api.hooks.arrivals import ACCEPTED, IGNORED, REFUSED, Arrival
from docora.api.hooks.proofs import Proofs
from docora.api.problems import answer_to, answer_without_body, check_length
from docora.limits import rate
from docora.limits.client_address import address_behind_proxies, client_address
from docora.short_requests import LARGEST, SHORT
from repositories import hooks
from repositories.base import log_context, queue
from repositories.errors import DocoraError, Malformed, QueueUnavailable, RateLimited, WrongProof
from repositories.hooks import OpenHook, Push

log = logging.getLogger("docora.hooks")

_PIECE = 64 << 10
# An app knows the secret of its own hook and could send what takes a hundred times its size in memory when it is
# parsed. A larger push is not read: the repository is known, so the look is asked for all the same.
_MOST_PARSED_OF_AN_APP = 1 << 20
# Seconds for a body that is still arriving: Docora's own web server has all of it before, others may not.
_PATIENCE = 10.0

# What an unknown id is checked against, so that it takes as long as a known one.
_NO_HOOK = OpenHook(public_id="unknown", secrets=[secrets.token_urlsafe(44) for _ in range(hooks.MOST_SECRETS)])


def find(hook_ids: Sequence[str]) -> list[OpenHook]:
    found = hooks.find(hook_ids)
    return [found.get(hook_id, _NO_HOOK) for hook_id in hook_ids]


def verify(hook: OpenHook, headers: Mapping[str, str], pieces: Iterable[bytes]) -> bytes | None:
    """The body; None if the proof is wrong. Of a hook that an app has made, no more is kept than is parsed."""
    kept = LARGEST if hook.host else _MOST_PARSED_OF_AN_APP + 1
    # Always as many, so that the time does not tell that a secret was changed lately.
    proofs = Proofs(headers, [*hook.secrets, *_NO_HOOK.secrets][: hooks.MOST_SECRETS])
    body = bytearray()
    for piece in pieces:
        proofs.update(piece)
        body += piece[: kept - len(body)]
    return bytes(body) if proofs.hold() and hook is not _NO_HOOK else None


def read(
    hook: OpenHook, remote_address: str, headers: Mapping[str, str], body: bytes | None, *, request_id: str
) -> Arrival:
    """What the hook tells of; `body` is what `verify` has returned."""
    event = events.event_of(headers)
    address = address_behind_proxies(remote_address, headers)
    delivery = events.delivery_of(headers)
    arrival = partial(Arrival, hook=hook, address=address, event=event, delivery=delivery, request_id=request_id)
    if body is None:
        return arrival(outcome=REFUSED, error="The proof is missing or wrong.", is_proven=False)
    content_type = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    try:
        if hook.host and events.is_about_installations(event):
            owner = events.read_owner(body, content_type)
            owner = owner if hooks.is_of_github_app(hook) else ""
            return arrival(outcome=ACCEPTED if owner else IGNORED, recheck_owner=owner)
        repositories = hooks.concerned(hook, _push(hook, event, body, content_type))
        return arrival(outcome=ACCEPTED if repositories else IGNORED, hint_at=repositories)
    except Malformed as error:
        return arrival(outcome=REFUSED, error=str(error))


def answer(arrival: Arrival) -> HttpResponse:
    """Once it is taken in."""
    if not arrival.is_proven:
        return answer_to(WrongProof())
    if arrival.error:
        return answer_to(Malformed(arrival.error, http_status=400))
    return HttpResponse(status=HTTPStatus.ACCEPTED if arrival.outcome == ACCEPTED else HTTPStatus.NO_CONTENT)


def unavailable(error: Exception) -> HttpResponse:
    log.warning("A hook was answered with 503: %s", error)
    return answer_to(QueueUnavailable())


@require_POST
def receive(request: HttpRequest, hook_id: str) -> HttpResponse:
    try:
        check_length(request, most=LARGEST)
        return _receive(request, hook_id)
    except DocoraError as error:
        return answer_to(error)
    except UnreadablePostError:
        return answer_without_body(request)
    except (redis.RedisError, DatabaseError) as error:
        return unavailable(error)


def _receive(request: HttpRequest, hook_id: str) -> HttpResponse:
    is_large = int(request.headers.get("Content-Length") or 0) > SHORT
    wait = rate.check_hook(client_address(request), hook_id, through=queue.impatient_connection()) if is_large else 0.0
    [hook] = find([hook_id])
    body = verify(hook, request.headers, _pieces(request))
    if wait and body is not None:
        raise RateLimited(wait)
    remote_address = request.META.get("REMOTE_ADDR", "")
    arrival = read(hook, remote_address, request.headers, body, request_id=log_context.request_id())
    [taken_in] = arrivals.take_in([arrival])
    if isinstance(taken_in, RateLimited):
        raise taken_in
    return _Accepted(then=taken_in) if taken_in else answer(arrival)


class _Accepted(HttpResponse):
    """The hints are written down. The looks are asked for when the server closes this answer."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__(status=HTTPStatus.ACCEPTED)
        self._then = then

    def close(self) -> None:
        super().close()
        self._then()


def _push(hook: OpenHook, event: str, body: bytes, content_type: str) -> Push:
    if not events.is_push(event):
        return Push(refs=frozenset())
    if hook.repository and len(body) > _MOST_PARSED_OF_AN_APP:
        return Push()
    return events.read_push(body, content_type)


def _pieces(request: HttpRequest) -> Iterator[bytes]:
    deadline = time.monotonic() + _PATIENCE
    while piece := request.read(_PIECE):
        yield piece
        if time.monotonic() > deadline:
            raise UnreadablePostError
