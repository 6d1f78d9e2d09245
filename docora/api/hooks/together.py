"""Short hooks that arrive at the same time are answered at the same time: one question to the database and one to Redis
for all of them, and none of Django's handling of requests. A git host may send hundreds in a second.

Whatever is not an ordinary short hook, such as one for a host that is not ours, is left to Django, which answers it by
the same steps (`receive`).
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from threading import Lock

import redis
from django.conf import settings
from django.db import DatabaseError, connection
from django.http import HttpRequest, HttpResponse
from django.http.request import split_domain_port, validate_host
from django.middleware.security import SecurityMiddleware

from docora.api.hooks import arrivals, receive
from docora.api.hooks.arrivals import Arrival, TakenIn
from docora.api.hooks.middleware import hook_id_in
from docora.api.problems import answer_to
from docora.middleware.csp import ContentSecurityPolicy
from docora.middleware.request_id import HEADER
from docora.short_requests import ShortAnswer, ShortRequest
from repositories.base import log_context
from repositories.errors import RateLimited
from repositories.hooks import OpenHook

# A stand-in that says https, for Django's middleware: where https is required, `takes` lets nothing else through.
_ANY_REQUEST = HttpRequest()
_ANY_REQUEST.META["HTTP_X_FORWARDED_PROTO"] = "https"


class HooksTogether:
    """All of it but `takes` is called in one thread, which has a database connection of its own."""

    def __init__(self) -> None:
        self._failed_at = 0.0
        # Held while a batch that Redis was too slow for waits for it: no more than one, however long Redis is away.
        self._late_batch = Lock()

    def prepare(self) -> None:
        """Else a whole burst would wait for what its first hook opens. What cannot be opened now is opened then."""
        with suppress(DatabaseError, redis.RedisError):
            connection.ensure_connection()
            arrivals.prepare()

    def takes(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        return (
            method == "POST"
            and hook_id_in(path) != ""
            and _is_host_of_ours(headers.get("Host", ""))
            and (not settings.SECURE_SSL_REDIRECT or headers.get("X-Forwarded-Proto") == "https")
        )

    def answer_all(self, requests: Sequence[ShortRequest]) -> list[ShortAnswer]:
        """In the order in which they came."""
        # Each has a tenth of a second. Those that have waited behind a question that failed have used it up.
        late = [request for request in requests if request.arrived < self._failed_at]
        refused = _unavailable(late, redis.TimeoutError("it did not answer the hooks before")) if late else []
        return refused + self._answer_in_time(requests[len(late) :])

    def _answer_in_time(self, requests: Sequence[ShortRequest]) -> list[ShortAnswer]:
        arrived: list[Arrival] = []
        try:
            hooks = _find([hook_id_in(request.path) for request in requests])
            arrived = [_read(hook, request) for hook, request in zip(hooks, requests, strict=True)]
            taken_in = arrivals.take_in(arrived) if arrived else []
        except (redis.RedisError, DatabaseError) as error:
            self._failed_at = time.monotonic()
            missed = [arrival for arrival in arrived if arrival.hint_at or arrival.recheck_owner]
            return self._try_again_later(_unavailable(requests, error), missed)
        return [_answer(arrival, outcome) for arrival, outcome in zip(arrived, taken_in, strict=True)]

    def _try_again_later(self, answers: list[ShortAnswer], missed: Sequence[Arrival]) -> list[ShortAnswer]:
        if not missed or not self._late_batch.acquire(blocking=False):
            return answers

        def take_in_late() -> None:
            try:
                arrivals.take_in_late(missed)
            finally:
                self._late_batch.release()

        first, *others = answers
        return [replace(first, then=take_in_late), *others]


def _read(hook: OpenHook, request: ShortRequest) -> Arrival:
    body = receive.verify(hook, request.headers, [request.body])
    return receive.read(hook, request.remote_address, request.headers, body, request_id=_request_id(request))


def _find(hook_ids: Sequence[str]) -> list[OpenHook]:
    try:
        return receive.find(hook_ids)
    except DatabaseError:  # the server may have been started again since the last hook
        connection.close()
        return receive.find(hook_ids)


def _answer(arrival: Arrival, taken_in: TakenIn) -> ShortAnswer:
    if isinstance(taken_in, RateLimited):
        return _short(answer_to(taken_in), arrival.request_id)
    return replace(_short(receive.answer(arrival), arrival.request_id), then=taken_in)


def _unavailable(requests: Sequence[ShortRequest], error: Exception) -> list[ShortAnswer]:
    response = receive.unavailable(error)
    return [_short(response, _request_id(request)) for request in requests]


def _short(response: HttpResponse, request_id: str) -> ShortAnswer:
    """With the headers that Django's middleware would add."""
    ContentSecurityPolicy(lambda _: response)(_ANY_REQUEST)
    SecurityMiddleware(lambda _: response).process_response(_ANY_REQUEST, response)
    headers = {**response.headers, HEADER: request_id}
    return ShortAnswer(status=response.status_code, headers=headers, body=response.content)


def _request_id(request: ShortRequest) -> str:
    return log_context.accepted_request_id(request.headers.get(HEADER)) or log_context.new_request_id()


@lru_cache(maxsize=100)
def _is_host_of_ours(host: str) -> bool:
    return validate_host(split_domain_port(host)[0], settings.ALLOWED_HOSTS)
