"""What git says when it fails: bounded before it is looked at, and what it means."""

import ipaddress
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django import Settings

from repositories.errors import AccessDenied, CloneDamaged, GitError, HostUnavailable, RefNotFound, TooLarge
from repositories.git import _process, clones
from repositories.git._process import Command, error_of
from repositories.git.urls import RemoteUrl
from repositories.repo_lock import repo_lock
from tests.support.hostile_host import END, HostileHost, host, hostile_host, packet

COMMAND = Command(["fetch"], folder=Path("/"), timeout=20)
COMMIT = "1" * 40


@pytest.fixture
def hostile(settings: Settings, tmp_path: Path) -> Iterator[HostileHost]:
    with hostile_host() as host:
        settings.GIT_HOSTS = (host.address,)
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
        settings.REPOS_BASE_PATH = tmp_path / "repos"
        yield host


def test_no_search_sees_more_of_a_line_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    search = re.search

    def counting(pattern: str, text: str, flags: int = 0) -> re.Match[str] | None:
        searched.append(len(text))
        return search(pattern, text, flags)

    monkeypatch.setattr(re, "search", counting)
    hostile_text = "repository " * 100_000
    error = error_of(COMMAND, 128, hostile_text)
    assert len(hostile_text) > 1_000_000
    assert max(searched) <= 1000
    assert len(searched) < 20, "each meaning is looked for once"
    assert len(str(error)) <= 500


def test_the_verdict_is_found_behind_a_flood_of_words() -> None:
    words = "\n".join(["remote: nonsense"] * 1000 + ["fatal: loose object 1234 is corrupt"])
    assert isinstance(error_of(COMMAND, 128, words), CloneDamaged)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("fatal: repository 'https://host/openssl/rustls-certificate/' not found", AccessDenied),
        ("fatal: unable to access 'https://host/openssl/tls/': The requested URL returned error: 404", AccessDenied),
        ("fatal: couldn't find remote ref refs/heads/tls-corrupt", RefNotFound),
        ("fatal: unable to access 'https://host/not-authorized/': SSL certificate problem", HostUnavailable),
    ],
)
def test_the_name_of_a_repository_or_branch_means_nothing(said: str, error: type[GitError]) -> None:
    assert type(error_of(COMMAND, 128, said)) is error


def test_git_that_says_nothing_has_failed_all_the_same(hostile: HostileHost) -> None:
    remote = clones.Remote(url=RemoteUrl.parse(hostile.url))
    error = error_of(Command(["fetch"], folder=Path("/"), timeout=20, remote=remote), 1, "")
    assert type(error) is GitError
    assert str(error) == "git fetch ended with status 1."


def test_words_without_end_are_not_kept(hostile: HostileHost, monkeypatch: pytest.MonkeyPatch) -> None:
    line = packet(b"\x02" + b"x" * 60_000 + b"\n")
    flood = itertools.chain([packet(b"packfile\n")], itertools.repeat(line, 300), [packet(b"\x03over"), END])
    hostile.answer = host(fetch=flood)
    kept: list[str] = []
    text = _process._Words.text

    def noted(words: _process._Words) -> str:
        kept.append(text(words))
        return kept[-1]

    monkeypatch.setattr(_process._Words, "text", noted)
    remote = clones.Remote(url=RemoteUrl.parse(hostile.url))
    tip = clones.Tip(sha=COMMIT, target=COMMIT, source="refs/heads/main", url=remote.url)
    with repo_lock("acme/handbook", job_id="test") as held, pytest.raises(GitError):
        clones.refresh("acme/handbook", remote, tip, held=held)
    assert "x" * 1000 in kept[0]
    assert len(kept[0]) <= 1 << 16


def test_refs_without_end_are_not_kept(hostile: HostileHost) -> None:
    names = (packet(f"{COMMIT} refs/heads/{number:0100}/HEAD\n".encode()) for number in itertools.count())
    hostile.answer = host(refs=itertools.chain(itertools.islice(names, 100_000), [END]))
    with pytest.raises(TooLarge, match="printed more than"):
        clones.look(clones.Remote(url=RemoteUrl.parse(hostile.url)), "")
