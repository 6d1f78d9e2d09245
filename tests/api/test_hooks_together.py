"""Short hooks that are answered together: as Django would have answered each, with one question to Redis."""

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.datastructures import CaseInsensitiveMapping
from pytest_django import Settings

from docora.api.hooks import arrivals, together
from docora.api.hooks.together import HooksTogether
from docora.short_requests import ShortAnswer
from repositories import hooks
from repositories.base import queue
from tests.support.git_hooks import Sent, github, sign
from tests.support.hook_cast import MadeHook, unreachable, waiting

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("no_pauses")]

NOBODY = "/hooks/hook_" + "0" * 24


def of_each_kind(made: MadeHook) -> dict[str, tuple[Sent, str]]:
    malformed = b"no JSON"
    proof = {"X-Hub-Signature-256": f"sha256={sign(made.secret, malformed)}", "X-GitHub-Event": "push"}
    return {
        "a push": (github(made.secret, "acme/handbook"), made.url),
        "another branch": (github(made.secret, "acme/handbook", "refs/heads/other"), made.url),
        "a ping": (github(made.secret, "acme/handbook", event="ping"), made.url),
        "a wrong proof": (github("wrong", "acme/handbook"), made.url),
        "an unknown hook": (github(made.secret, "acme/handbook"), NOBODY),
        "malformed": (Sent(malformed, proof | {"Content-Type": "application/json"}), made.url),
    }


def test_they_are_answered_as_by_django(made: MadeHook) -> None:
    for kind, (sent, url) in of_each_kind(made).items():
        short, by_django = sent.to(url), sent.to_django(url)
        assert short.status_code == by_django.status_code, kind
        assert short.content == by_django.content, kind
        assert short.headers.pop("X-Request-ID") != by_django.headers.pop("X-Request-ID"), kind
        assert dict(short.headers) == dict(by_django.headers), kind


def test_over_https_they_have_the_headers_that_django_adds_there(made: MadeHook, settings: Settings) -> None:
    settings.SECURE_SSL_REDIRECT, settings.SECURE_HSTS_SECONDS = True, 31_536_000
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    sent = github(made.secret, "acme/handbook")
    sent = Sent(sent.body, {**sent.headers, "X-Forwarded-Proto": "https"})
    short, by_django = sent.to(made.url), sent.to_django(made.url)
    assert short["Strict-Transport-Security"] == by_django["Strict-Transport-Security"] == "max-age=31536000"


def test_a_batch_is_one_question_and_each_has_its_own_answer(
    made: MadeHook, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.HOOK_RATE = 4
    questions: list[int] = []
    ask = arrivals._ask

    def count(asked: list[tuple[list[str], list[str | bytes | int]]]) -> list[object]:
        questions.append(len(asked))
        return ask(asked)

    arrivals.prepare()
    monkeypatch.setattr(arrivals, "_ask", count)
    sent = [*of_each_kind(made).values(), (github(made.secret, "acme/handbook"), made.url)]
    answers = HooksTogether().answer_all([one.short(url) for one, url in sent])
    # The last is the fifth that has proven itself; forged ones do not count.
    assert [answer.status for answer in answers] == [202, 204, 204, 401, 401, 400, 429]
    assert questions == [7]
    assert (made.log.accepted, made.log.ignored, made.log.refused) == (1, 2, 3)
    assert waiting() == []
    assert [answer.then is not None for answer in answers] == [True, *[False] * 6]
    answers[0].then()  # type: ignore[misc]  # it is there
    assert waiting() == [f"hint-{made.watch.repository_id}"]


def test_a_batch_is_one_question_to_the_database(made: MadeHook) -> None:
    sent = [one.short(url) for one, url in of_each_kind(made).values()]
    with CaptureQueriesContext(connection) as questions:
        HooksTogether().answer_all(sent)
    assert len(questions) == 1


def test_nothing_is_left_to_do_for_a_push_that_a_waiting_job_will_see(made: MadeHook) -> None:
    answerer, sent = HooksTogether(), github(made.secret, "acme/handbook").short(made.url)
    [first] = answerer.answer_all([sent])
    [before_the_job_is_queued] = answerer.answer_all([sent])
    assert first.then
    assert before_the_job_is_queued.then
    first.then()
    [second] = answerer.answer_all([sent])
    assert (second.status, second.then) == (202, None)


def test_the_job_goes_back_to_the_request(made: MadeHook) -> None:
    sent = github(made.secret, "acme/handbook")
    for answered in (Sent.to, Sent.to_django):
        queue.connection().flushall()
        answer = answered(Sent(sent.body, {**sent.headers, "X-Request-ID": "from-the-host"}), made.url)
        assert answer["X-Request-ID"] == "from-the-host"
        [job] = queue.named(queue.URGENT).jobs
        assert job.meta["request_id"] == "from-the-host"


def test_a_server_that_was_started_again_is_asked_again(made: MadeHook) -> None:
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    queue.connection().script_flush()
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202


def test_a_database_that_was_started_again_is_asked_again(made: MadeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    find = hooks.find
    failures = [OperationalError("terminating connection due to administrator command")]

    def fail_once(public_ids: list[str]) -> dict[str, hooks.OpenHook]:
        if failures:
            raise failures.pop()
        return find(public_ids)

    monkeypatch.setattr(hooks, "find", fail_once)
    closed: list[bool] = []
    monkeypatch.setattr(connection, "close", lambda: closed.append(True))
    assert github(made.secret, "acme/handbook").to(made.url).status_code == 202
    assert closed == [True]


def test_those_that_waited_behind_a_failed_question_are_answered_at_once(
    made: MadeHook, monkeypatch: pytest.MonkeyPatch
) -> None:
    answerer = HooksTogether()
    first, waited = (github(made.secret, "acme/handbook").short(made.url) for _ in range(2))
    with monkeypatch.context() as away:
        gone = unreachable()
        away.setattr(queue, "impatient_connection", lambda: gone)
        assert statuses(answerer.answer_all([first])) == [503]
    # Redis is back, and is asked for those that have come since, and for no others.
    new = github(made.secret, "acme/handbook").short(made.url)
    assert statuses(answerer.answer_all([waited, waited, new])) == [503, 503, 202]
    assert made.log.accepted == 1
    assert statuses(answerer.answer_all([new])) == [202], "those that were late did not make it late too"


def test_a_database_that_is_away_is_a_503(made: MadeHook, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_public_ids: list[str]) -> None:
        raise OperationalError("gone")

    monkeypatch.setattr(hooks, "find", fail)
    monkeypatch.setattr(connection, "close", lambda: None)
    answers = HooksTogether().answer_all([github(made.secret, "acme/handbook").short(made.url)] * 2)
    assert statuses(answers) == [503, 503]
    assert {answer.headers["Retry-After"] for answer in answers} == {"5"}


def test_what_is_no_ordinary_hook_is_left_to_django(made: MadeHook, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["docora.example.com"]
    together._is_host_of_ours.cache_clear()
    ours = CaseInsensitiveMapping({"Host": "docora.example.com"})
    takes = HooksTogether().takes
    assert takes("POST", made.url, ours)
    assert not takes("GET", made.url, ours)
    for path in ("/hooks/", "/hooks", "/hooks/a/b", "/api/app", "http://docora.example.com/hooks/a"):
        assert not takes("POST", path, ours), path
    for host in ("elsewhere.example.com", ""):
        assert not takes("POST", made.url, CaseInsensitiveMapping({"Host": host})), host
    settings.SECURE_SSL_REDIRECT = True
    assert not takes("POST", made.url, ours)
    assert takes("POST", made.url, CaseInsensitiveMapping({**dict(ours), "X-Forwarded-Proto": "https"}))
    together._is_host_of_ours.cache_clear()


def test_django_answers_them_where_the_web_server_has_no_batches(made: MadeHook) -> None:
    assert github(made.secret, "acme/handbook").to_django(made.url, Client()).status_code == 202
    assert waiting() == [f"hint-{made.watch.repository_id}"]


def statuses(answers: list[ShortAnswer]) -> list[int]:
    return [answer.status for answer in answers]
