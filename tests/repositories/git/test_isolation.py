"""Git children: what they see of this process, of the folders around a clone, and of the secrets of others."""

import asyncio
import base64
import ipaddress
import logging
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from git import Git
from pytest_django import Settings

from docora.demo.githost import GitHost, HostedRepository
from docora.processes.mark import MARK
from repositories import watches
from repositories.errors import CloneDamaged, ForbiddenAddress, GitError
from repositories.git import _process, clones, ls_refs
from repositories.git._process import Command
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository, Watch
from repositories.repo_lock import HeldLock, repo_lock
from snapshots import look
from tests.support.hostile_host import END, Answer, HostileHost, Question, host, hostile_host, packet, refusal

pytestmark = pytest.mark.any_database

TOKEN = "ghp_Zq7xWm2Kd9Rt4Vb8Ny1Lc6"
SECRETS = {
    "ENCRYPTION_KEYS": "the keys of everything",
    "DJANGO_SECRET_KEY": "the key of the sessions",
    "DATABASE_URL": "postgres://docora:password@host/docora",
    "SOMETHING_ELSE%%": "of any name",
}


@pytest.fixture
def key(remote: HostedRepository) -> str:
    return RemoteUrl.parse(remote.url).clone_key


@pytest.fixture
def held(key: str) -> Iterator[HeldLock]:
    with repo_lock(key, job_id="test") as held:
        yield held


@pytest.fixture
def fetch(remote: HostedRepository, key: str, held: HeldLock) -> Callable[[], str]:
    def refresh() -> str:
        source = clones.Remote(url=RemoteUrl.parse(remote.url))
        tip = clones.look(source, "")
        assert tip
        clones.refresh(key, source, tip, held=held)
        return tip.sha

    return refresh


@pytest.fixture
def echoing(settings: Settings, tmp_path: Path) -> Iterator[HostileHost]:
    with hostile_host() as host:
        settings.GIT_HOSTS = (host.address,)
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
        settings.REPOS_BASE_PATH = tmp_path / "repos"
        yield host


@pytest.fixture
def outer(tmp_path: Path, settings: Settings, remote: HostedRepository) -> Path:
    """Somebody's work tree, with the clones in a folder of it and an object that nothing refers to."""
    work_tree = tmp_path / "outer"
    work_tree.mkdir()
    environment = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}

    def git(*words: str) -> None:
        author = ("-c", "user.name=Owner", "-c", "user.email=owner@example.com")
        subprocess.run(["git", *author, *words], cwd=work_tree, env=environment, check=True, capture_output=True)

    (work_tree / "file").write_text("of nobody's concern")
    git("init", "--quiet")
    git("add", "file")
    git("commit", "--quiet", "--message=first")
    (work_tree / "file").write_text("not committed")
    git("hash-object", "-w", "file")
    settings.REPOS_BASE_PATH = work_tree / "data" / "repos"
    return work_tree


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def without_head(clone: Path) -> None:
    (clone / "HEAD").unlink()


def without_objects(clone: Path) -> None:
    (clone / "objects").rename(clone / "elsewhere")


@pytest.mark.parametrize("damage", [without_head, without_objects])
def test_git_in_a_damaged_clone_does_not_touch_the_repository_around_it(
    outer: Path,
    fetch: Callable[[], str],
    key: str,
    held: HeldLock,
    remote: HostedRepository,
    damage: Callable[[Path], None],
) -> None:
    fetch()
    before = everything_in(outer / ".git")
    damage(clones.path_of(key))
    with pytest.raises(CloneDamaged):
        clones.pins(key)
    with pytest.raises(CloneDamaged), clones.open_blobs(key) as blobs:
        blobs.has("HEAD")
    with pytest.raises(CloneDamaged):
        clones.unpin(key, ["1" * 40], held=held)
    with pytest.raises(CloneDamaged):
        clones.pack(key, held=held)
    remote.commit({"more.md": "more"})
    commit = fetch()
    assert clones.pins(key) == {commit}
    assert everything_in(outer / ".git") == before


def test_asking_a_host_reads_no_repository_either(outer: Path) -> None:
    asking = Command(["rev-parse", "--git-dir"], folder=outer, timeout=20, in_clone=False)
    with pytest.raises(GitError, match="not a git repository"):
        _process.run(asking)


SeenByGit = Callable[..., dict[str, str]]


@pytest.fixture
def seen_by_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SeenByGit:
    """Puts a git in the place of git that writes down its environment."""
    found, folder = tmp_path / "seen", tmp_path / "bin"
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\nenv -0 > {found}\n")
    (folder / "git").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def run(act: Callable[[], object] | None = None) -> dict[str, str]:
        (act or (lambda: _process.run(Command(["version"], folder=tmp_path, timeout=20))))()
        lines = found.read_bytes().decode().split("\0")
        return dict(line.split("=", 1) for line in lines if line)

    return run


def test_every_question_to_a_host_is_asked_so(remote: HostedRepository, seen_by_git: SeenByGit) -> None:
    seen = seen_by_git(lambda: clones.look(clones.Remote(url=RemoteUrl.parse(remote.url)), ""))
    assert seen["GIT_DIR"] == os.devnull


def test_git_speaks_no_other_protocol(outer: Path, tmp_path: Path) -> None:
    """Whatever URL gets to it: here one of a repository that is there, and one that would run a command."""
    for url in (f"file://{outer}", f"ext::touch {tmp_path / 'marker'}"):
        with pytest.raises(GitError, match="not allowed"):
            _process.run(Command(["ls-remote", "--", url], folder=Path("/"), timeout=20, in_clone=False))
    assert not (tmp_path / "marker").exists()


def test_git_sees_no_secret_of_ours(monkeypatch: pytest.MonkeyPatch, seen_by_git: SeenByGit) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    seen = seen_by_git()
    assert not set(SECRETS.values()) & set(seen.values())
    ours = {name for name, value in seen.items() if value and not name.startswith("GIT_")}
    assert ours <= {"PATH", "LD_LIBRARY_PATH", "TMPDIR", "SSL_CERT_DIR", "SSL_CERT_FILE", "DOCORA_PROCESS"} | {
        "HOME", "LANGUAGE", "LC_ALL", "PWD", "OLDPWD", "_", "SHLVL",
    }  # fmt: skip


def test_the_token_is_in_no_argument_list(
    git_host: GitHost, held: HeldLock, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = git_host.create("acme/secret", private_to={TOKEN})
    secret.commit({"a.md": "a"})
    source = clones.Remote(url=RemoteUrl.parse(secret.url), token=TOKEN)
    started: list[str] = []
    execute = Git.execute

    def note_and_execute(git: Git, words: list[str], **options: Any) -> Any:
        started.append(" ".join(words))
        return execute(git, words, **options)

    monkeypatch.setattr(Git, "execute", note_and_execute)
    tip = clones.look(source, "")
    assert tip
    clones.refresh(key, source, tip, held=held)
    for command in ("ls-remote", "fetch"):
        assert any(command in words for words in started)
    for hidden in (source.token, source.authorization.removeprefix("Basic ")):
        assert not any(hidden in words for words in started)


def test_a_git_keeps_the_mark_by_which_the_supervisor_finds_it(
    monkeypatch: pytest.MonkeyPatch, seen_by_git: SeenByGit
) -> None:
    monkeypatch.setenv(MARK, "run.snapshots-1.1")
    assert seen_by_git()[MARK] == "run.snapshots-1.1"


def test_git_can_be_killed_as_a_group_and_gives_way_like_its_worker(tmp_path: Path) -> None:
    """Linux shares the processor between sessions: in one of its own, git would not have its worker's priority."""
    with _process.child(Command(["hash-object", "--stdin-paths"], folder=tmp_path, timeout=20)) as git:
        assert os.getpgid(git.process.pid) == git.process.pid
        assert os.getsid(git.process.pid) == os.getsid(0)


def test_what_git_says_last_is_heard_before_its_caller_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\necho 'Receiving objects: 100% (7/7)' >&2\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    has_ended = threading.Event()
    read_all, listen = _process._read_all, _process._Words.run

    def read_all_and_say_so(*arguments: Any) -> bytes:
        try:
            return read_all(*arguments)
        finally:
            has_ended.set()

    def listen_late(words: _process._Words) -> None:
        has_ended.wait(20)
        time.sleep(0.1)
        listen(words)

    monkeypatch.setattr(_process, "_read_all", read_all_and_say_so)
    monkeypatch.setattr(_process._Words, "run", listen_late)
    heard: list[tuple[int, int]] = []
    asking = Command(["fetch"], folder=tmp_path, timeout=20, on_progress=lambda *counts: heard.append(counts))
    _process.run(asking)
    assert heard == [(7, 7)]


def test_what_a_parents_environment_says_to_git_does_not_reach_ours(
    monkeypatch: pytest.MonkeyPatch, seen_by_git: SeenByGit
) -> None:
    names = ("GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY", "GIT_SHALLOW_FILE", "GIT_QUARANTINE_PATH", "GIT_SSL_NO_VERIFY")
    for name in (*names, "GIT_DIR"):
        monkeypatch.setenv(name, "/nowhere")
    seen = seen_by_git()
    assert not set(names) & set(seen)
    assert seen["GIT_DIR"] == "."


def test_clones_work_inside_a_hook_of_another_repository(
    monkeypatch: pytest.MonkeyPatch, fetch: Callable[[], str], key: str
) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_QUARANTINE_PATH"):
        monkeypatch.setenv(name, "/nowhere")
    commit = fetch()
    assert clones.pins(key) == {commit}


def test_a_git_that_is_not_there_is_no_damaged_clone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="not installed") as raised:
        _process.run(Command(["version"], folder=tmp_path, timeout=20))
    assert type(raised.value) is GitError


def test_git_dials_the_address_that_was_judged_and_no_other(
    echoing: HostileHost, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only our own resolver knows the name, so a git that looks it up by itself finds nothing."""
    resolve = socket.getaddrinfo

    def resolve_ours(name: str, *rest: Any, **more: Any) -> Any:
        return resolve("127.0.0.1" if name == "git.invalid" else name, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_ours)
    settings.GIT_HOSTS = (echoing.address.replace("127.0.0.1", "git.invalid"),)
    echoing.answer = host(refs=[packet(b"1" * 40 + b" HEAD symref-target:refs/heads/main\n") + END])
    remote = clones.Remote(url=RemoteUrl.parse(f"http://{settings.GIT_HOSTS[0]}/acme/handbook"))
    tip = clones.look(remote, "")
    assert tip
    assert tip.sha == "1" * 40
    echoing.questions.clear()
    settings.TRUSTED_NETWORKS = ()
    with pytest.raises(ForbiddenAddress):
        clones.look(remote, "")
    assert echoing.questions == []


def _ending(question: Question) -> str:
    return question.authorization.removeprefix("Basic ")[22:]


ECHOES: dict[str, Callable[[Question], Answer]] = {
    "in an error": lambda question: refusal(f"bad header: {question.authorization}"),
    "cut, in an error": lambda question: refusal(f"bad header: {_ending(question)}"),
    "decoded": lambda question: refusal(base64.b64decode(question.authorization[6:]).decode()),
    "as a status with a text": lambda question: Answer(
        [f"corrupt: {question.authorization[6:]}".encode()], status=400, headers={"Content-Type": "text/plain"}
    ),
    "in a redirect": lambda question: Answer(
        status=301, headers={"Location": f"https://{TOKEN}.example.com/{_ending(question)}/info/refs"}
    ),
    "in a packet that is none": lambda question: Answer([packet(question.authorization.encode())]),
}


@pytest.mark.django_db
@pytest.mark.parametrize("echo", ECHOES.values(), ids=ECHOES)
def test_a_host_that_echoes_the_credentials_puts_them_nowhere(
    echo: Callable[[Question], Answer],
    echoing: HostileHost,
    alice_app: App,
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = RemoteUrl.parse(echoing.url)
    repository = Repository.objects.create(clone_key=url.clone_key, url=str(url), owner="acme", name="handbook")
    Watch.objects.create(app=alice_app, repository=repository, token=TOKEN)
    echoing.answer = echo
    with caplog.at_level(logging.DEBUG, logger="docora"):
        look.take_snapshot(repository.pk, job_id="test")
    assert echoing.questions[0].authorization, "the token was sent"
    repository.refresh_from_db()
    with pytest.raises(GitError) as raised:
        watches.watch(alice_app, echoing.url, token=TOKEN)
    rows = [*Repository.objects.values_list(), *Watch.objects.values_list("last_error", "last_error_code")]
    credentials = echoing.questions[0].authorization.removeprefix("Basic ")
    for text in (repository.last_error, caplog.text, str(raised.value), str(rows)):
        for secret in (TOKEN, credentials[20:]):
            assert [secret[n : n + 8] for n in range(len(secret) - 7) if secret[n : n + 8] in text] == []
    assert repository.last_error or Watch.objects.get().last_error, "something was said"


@pytest.mark.parametrize("where", ["Content-Type", "X-Much\0"])
def test_the_look_without_git_logs_none_of_what_is_echoed(
    where: str, echoing: HostileHost, caplog: pytest.LogCaptureFixture
) -> None:
    echoing.answer = lambda question: Answer(
        [packet(question.authorization.encode())], headers={where: f"application/{TOKEN}"}
    )
    remote = clones.Remote(url=RemoteUrl.parse(echoing.url), token=TOKEN)

    async def ask() -> ls_refs.Answer:
        host = ls_refs.Host(remote.url)
        try:
            return await host.ask(remote, "", known="1" * 40)
        finally:
            await host.close()

    with caplog.at_level(logging.DEBUG, logger="docora"):
        assert asyncio.run(ask()) == ls_refs.Answer()
    assert echoing.questions, "the host was asked"
    assert "is left to git" in caplog.text
    assert TOKEN[:8] not in caplog.text
