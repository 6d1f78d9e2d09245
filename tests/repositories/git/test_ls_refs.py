"""One HTTP question for a tip: only the known one, in a well-formed answer of protocol version 2, is "unchanged"."""

import base64
import gzip
import shutil
import threading
from collections.abc import Callable, Iterator

import pytest
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from repositories.base.outgoing import PausingLoop
from repositories.git.clones import Remote
from repositories.git.ls_refs import Answer, Host, NotUnderstood, question, refs_in, tip_of
from repositories.git.urls import RemoteUrl
from tests.support.hostile_host import CAPABILITIES, END, HostileHost, Question, host, packet
from tests.support.hostile_host import Answer as Sent

TIP = "1" * 40
REFS = packet(f"{TIP} HEAD symref-target:refs/heads/main\n".encode())


def ask_all(url: str, *, times: int = 1, ref: str = "", known: str = TIP, token: str = "") -> list[Answer]:
    async def ask() -> list[Answer]:
        remote = Remote(url=RemoteUrl.parse(url), token=token)
        host = Host(remote.url)
        try:
            return [await host.ask(remote, ref, known=known) for _ in range(times)]
        finally:
            await host.close()

    loop = PausingLoop()
    try:
        return loop.run(ask())
    finally:
        loop.close()


def is_unchanged(url: str, *, ref: str = "", known: str | None = TIP, token: str = "") -> bool:
    [answer] = ask_all(url, ref=ref, known=known or "", token=token)
    return answer.is_unchanged


class TestARealHost:
    def test_knows_the_tip_of_the_default_branch(self, remote: HostedRepository) -> None:
        known = remote.tip()
        assert is_unchanged(remote.url, known=known)
        remote.commit({"more.md": "more"})
        assert not is_unchanged(remote.url, known=known)
        assert is_unchanged(remote.url, known=remote.tip())

    def test_is_asked_once_where_it_is_known_to_speak_version_2(
        self, remote: HostedRepository, git_host: GitHost
    ) -> None:
        answers = ask_all(remote.url, times=3, known=remote.tip() or "")
        assert all(answer.is_unchanged for answer in answers)
        assert (git_host.count(remote, "advertise"), git_host.count(remote, "ls-refs")) == (1, 3)

    def test_knows_the_commit_of_a_branch_and_of_both_kinds_of_tags(self, remote: HostedRepository) -> None:
        tip = remote.tip() or ""
        author = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        remote.git(*author, "tag", "--annotate", "--message=first", "v1", tip)
        remote.git("tag", "light", tip)
        remote.point("release/1", tip)
        assert all(is_unchanged(remote.url, ref=ref, known=tip) for ref in ("main", "v1", "light", "release/1"))

    def test_is_not_believed_for_a_ref_whose_name_only_begins_like_it(self, remote: HostedRepository) -> None:
        tip = remote.tip() or ""
        remote.point("release-1", tip)
        remote.git("tag", "release-tag", tip)
        assert not is_unchanged(remote.url, ref="release", known=tip)

    def test_may_keep_sha256(self, remote: HostedRepository) -> None:
        shutil.rmtree(remote.path)
        remote.path.mkdir()
        remote.git("init", "--quiet", "--bare", "--initial-branch=main", "--object-format=sha256")
        known = remote.commit({"a.md": "1"})
        assert len(known) == 64
        assert is_unchanged(remote.url, known=known)

    def test_reads_the_token_as_git_sends_it(self, git_host: GitHost) -> None:
        secret = git_host.create("acme/secret", private_to={"alice"})
        known = secret.commit({"a.md": "1"})
        assert is_unchanged(secret.url, known=known, token="alice")
        assert not is_unchanged(secret.url, known=known)
        assert not is_unchanged(secret.url, known=known, token="somebody else's")
        assert not is_unchanged(f"{secret.url}-that-is-not-there", known=known, token="alice")


def before(answer: Callable[[Question], Sent]) -> Callable[[Question], Sent]:
    """Right capabilities; what comes then is the test's."""
    return lambda asked: Sent([CAPABILITIES]) if "info/refs" in asked.path else answer(asked)


def refs(*pieces: bytes, status: int = 200, **headers: str) -> Callable[[Question], Sent]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return before(lambda _: Sent(pieces, status=status, headers=named))


def advertised(*lines: bytes) -> Callable[[Question], Sent]:
    return host(refs=[REFS, END], capabilities=b"".join(map(packet, lines)) + END)


MANY_HEADERS = {f"X-{number}": "x" * 1000 for number in range(1000)}
FLOOD = b"X" * 65536


def flood(first: bytes, sent: list[int]) -> Iterator[bytes]:
    yield first
    while len(sent) < 10_000:
        sent.append(len(FLOOD))
        yield FLOOD


class TestAHostileHost:
    def test_that_behaves_is_believed(self, hostile: HostileHost) -> None:
        """Else the tests below would show nothing."""
        hostile.answer = refs(REFS, END)
        assert is_unchanged(hostile.url)

    @pytest.mark.parametrize("status", [201, 204, 301, 302, 307, 400, 401, 403, 404, 500, 503])
    def test_that_answers_anything_but_200_is_not(self, hostile: HostileHost, status: int) -> None:
        hostile.answer = refs(REFS, END, status=status, Location=f"{hostile.url}-moved/git-upload-pack")
        assert not is_unchanged(hostile.url)
        assert not any("moved" in asked.path for asked in hostile.questions)

    @pytest.mark.parametrize(
        "answer",
        {
            "cut off": refs(REFS),
            "cut off in a packet": refs(REFS[:-1]),
            "nothing": refs(),
            "an empty repository": refs(END),
            "not git": refs(b"<html>not found</html>"),
            "an error in git's framing": refs(packet(b"ERR " + TIP.encode() + b" HEAD"), END),
            "more than it should": refs(REFS, END, REFS, END),
            "a delimiter": refs(REFS, b"0001", END),
            "two tips": refs(REFS, packet(b"2" * 40 + b" HEAD\n"), END),
            "no hash": refs(packet(b"zzzz HEAD\n"), END),
            "a ref below the one": refs(packet(TIP.encode() + b" HEAD/1\n"), END),
            "packed": refs(gzip.compress(REFS + END), Content_Encoding="gzip"),
            "called packed": refs(REFS, END, Content_Encoding="gzip"),
            "of another type": refs(REFS, END, Content_Type="text/plain"),
            "protocol 0": advertised(f"{TIP} HEAD\0symref=HEAD:refs/heads/main".encode()),
            "protocol 1": advertised(b"version 1\n", f"{TIP} HEAD\0side-band".encode()),
            "no ls-refs": advertised(b"version 2\n", b"fetch\n"),
            "another hash": advertised(b"version 2\n", b"ls-refs\n", b"object-format=sha256\n"),
            "dumb HTTP": lambda _: Sent([f"{TIP}\tHEAD\n".encode()], headers={"Content-Type": "text/plain"}),
            "too many headers": before(
                lambda _: Sent([REFS, END], headers={f"X-{number}": "x" * 1000 for number in range(1000)})
            ),
            "a header that is too long": refs(REFS, END, X="x" * 100_000),
        }.items(),
        ids=lambda case: case[0],
    )
    def test_whose_answer_is_not_the_one_that_counts(
        self, hostile: HostileHost, answer: tuple[str, Callable[[Question], Sent]]
    ) -> None:
        hostile.answer = answer[1]
        assert not is_unchanged(hostile.url)

    @pytest.mark.parametrize("door", ["info/refs", "git-upload-pack"])
    def test_that_sends_without_end_is_cut_off_early(self, hostile: HostileHost, door: str) -> None:
        sent: list[int] = []
        well_behaved = refs(REFS, END)
        start = packet(b"version 2\n") if door == "info/refs" else REFS
        hostile.answer = lambda asked: Sent(flood(start, sent)) if door in asked.path else well_behaved(asked)
        assert not is_unchanged(hostile.url)
        assert sum(sent) < 32 << 20

    def test_that_sends_a_byte_at_a_time_is_given_up(self, hostile: HostileHost, settings: Settings) -> None:
        settings.GIT_ASK_TIMEOUT = 0.2
        left = threading.Event()

        def drip() -> Iterator[bytes]:
            for byte in REFS + END:
                yield bytes([byte])
                left.wait(0.1)

        hostile.answer = before(lambda _: Sent(drip()))
        assert not is_unchanged(hostile.url)
        left.set()

    def test_on_a_private_address_is_not_dialled(self, hostile: HostileHost, settings: Settings) -> None:
        settings.TRUSTED_NETWORKS = ()
        hostile.answer = refs(REFS, END)
        assert not is_unchanged(hostile.url)
        assert hostile.questions == []

    @pytest.mark.parametrize(
        ("status", "headers", "seconds"),
        [
            (429, {}, 60),
            (429, {"Retry_After": "7"}, 7),
            (503, {"Retry_After": "120"}, 120),
            (200, {"Retry_After": "5"}, 5),
            (503, {"Retry_After": "soon"}, 0),
        ],
    )
    def test_may_ask_for_rest(self, hostile: HostileHost, status: int, headers: dict[str, str], seconds: float) -> None:
        hostile.answer = refs(REFS, END, status=status, **headers)
        assert ask_all(hostile.url) == [Answer(rest=seconds)]

    def test_gets_no_token_of_another_host(self, hostile: HostileHost) -> None:
        hostile.answer = refs(REFS, END)
        assert is_unchanged(hostile.url, token="alice")
        expected = "Basic " + base64.b64encode(b"x-access-token:alice").decode()
        assert {asked.authorization for asked in hostile.questions} == {expected}
        hostile.questions.clear()
        assert is_unchanged(hostile.url)
        assert {asked.authorization for asked in hostile.questions} == {""}

    def test_that_does_not_name_its_object_format_is_not_sent_one(self, hostile: HostileHost) -> None:
        hostile.answer = advertised(b"version 2\n", b"ls-refs\n")
        assert is_unchanged(hostile.url)
        assert b"object-format" not in hostile.questions[-1].body

    def test_is_asked_without_packing(self, hostile: HostileHost) -> None:
        hostile.answer = refs(REFS, END)
        is_unchanged(hostile.url)
        assert [asked.headers["Accept-Encoding"] for asked in hostile.questions] == ["identity", "identity"]
        assert [asked.headers["Git-Protocol"] for asked in hostile.questions] == ["version=2", "version=2"]


def test_a_connection_that_the_host_has_closed_meanwhile_is_no_failure(
    remote: HostedRepository, git_host: GitHost
) -> None:
    async def ask() -> list[Answer]:
        asked = Remote(url=RemoteUrl.parse(remote.url))
        host = Host(asked.url)
        try:
            first = await host.ask(asked, "", known=remote.tip() or "")
            git_host._server.end_connections()  # the loop stands still meanwhile, and so does not notice
            return [first, await host.ask(asked, "", known=remote.tip() or "")]
        finally:
            await host.close()

    loop = PausingLoop()
    assert [answer.is_unchanged for answer in loop.run(ask())] == [True, True]
    loop.close()


def test_the_question_names_what_may_be_the_tip() -> None:
    start = packet(b"command=ls-refs\n") + packet(b"object-format=sha1") + b"0001"
    options = packet(b"peel\n") + packet(b"symrefs\n")
    assert question("", "sha1") == start + options + packet(b"ref-prefix HEAD\n") + END
    names = packet(b"ref-prefix refs/heads/v1\n") + packet(b"ref-prefix refs/tags/v1\n")
    assert question("v1", "sha1") == start + options + names + END


def test_a_branch_comes_before_a_tag_and_the_commit_before_the_tag_object() -> None:
    tag = packet(b"3" * 40 + b" refs/tags/v1 peeled:" + b"4" * 40 + b"\n")
    assert tip_of("v1", refs_in(tag + END)) == "4" * 40
    branch = packet(b"5" * 40 + b" refs/heads/v1\n")
    assert tip_of("v1", refs_in(tag + branch + END)) == "5" * 40


@pytest.mark.parametrize("body", [b"0000000", b"00", b"0003", b"fffe", b"+005a0000", b"0 05a0000"])
def test_what_is_not_in_gits_framing_is_not_understood(body: bytes) -> None:
    with pytest.raises(NotUnderstood):
        refs_in(body)
