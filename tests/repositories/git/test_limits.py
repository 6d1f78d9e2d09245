"""Repositories that are made to take memory, time or disk: git is stopped, that repository alone is at fault."""

import gzip
import hashlib
import io
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest_django import Settings

from docora.demo.githost import HostedRepository
from repositories.errors import DiskFull, LimitExceeded
from repositories.git import _process, clones
from repositories.git._process import Command
from repositories.git.urls import RemoteUrl
from repositories.models import App, Repository, Watch
from repositories.repo_lock import repo_lock
from snapshots import look
from tests.support.hostile_host import END, Answer, HostileHost, Question, host, packet

pytestmark = pytest.mark.any_database

MIB = 1 << 20
_COMMIT, _TREE, _BLOB, _DELTA = 1, 2, 3, 7


def name_of(kind: bytes, content: bytes) -> bytes:
    return hashlib.sha1(b"%s %d\0%s" % (kind, len(content), content), usedforsecurity=False).digest()


def _size(number: int) -> bytes:
    """Seven bits a byte, the low ones first."""
    pieces = bytearray()
    while number > 127:
        pieces.append(number & 127 | 128)
        number >>= 7
    return bytes([*pieces, number])


def _record(kind: int, content: bytes, base: bytes = b"") -> bytes:
    size = len(content)
    head = bytes([kind << 4 | size & 15 | (128 if size > 15 else 0)])
    return head + (_size(size >> 4) if size > 15 else b"") + base + zlib.compress(content)


class Bomb:
    """A pack of a few kilobytes whose one file is many times a block of 64 KiB, as a delta of that block."""

    def __init__(self, size: int) -> None:
        block = b"\0" * 65536
        times = size // len(block)
        # One byte copies 64 KiB from the beginning of the base.
        delta = _size(len(block)) + _size(size) + b"\x80" * times
        self.blob = name_of(b"blob", block * times)
        tree = b"100644 bomb\0" + self.blob
        who = b"A <a@example.com> 1 +0000"
        commit = b"tree %s\nauthor %s\ncommitter %s\n\nx\n" % (name_of(b"tree", tree).hex().encode(), who, who)
        self.commit = name_of(b"commit", commit).hex()
        base = name_of(b"blob", block)
        records = [_record(_COMMIT, commit), _record(_TREE, tree), _record(_BLOB, block), _record(_DELTA, delta, base)]
        body = b"PACK" + struct.pack(">II", 2, len(records)) + b"".join(records)
        self.pack = body + hashlib.sha1(body, usedforsecurity=False).digest()

    def host(self) -> Iterator[bytes]:
        shallow = [packet(b"shallow-info\n"), packet(f"shallow {self.commit}".encode()), b"0001"]
        return iter([*shallow, packet(b"packfile\n"), packet(b"\x01" + self.pack), END])


@pytest.fixture
def bomb() -> Bomb:
    return Bomb(96 * MIB)


def serve(hostile: HostileHost, bomb: Bomb) -> clones.Remote:
    def answer(question: Question) -> Answer:
        refs = [packet(f"{bomb.commit} HEAD symref-target:refs/heads/main\n".encode()) + END]
        return host(refs=refs, fetch=bomb.host())(question)

    hostile.answer = answer
    return clones.Remote(url=RemoteUrl.parse(hostile.url))


def fetch(remote: clones.Remote) -> clones.Tip:
    tip = clones.look(remote, "")
    assert tip
    with repo_lock(remote.url.clone_key, job_id="test") as held:
        clones.refresh(remote.url.clone_key, remote, tip, held=held)
    return tip


def test_a_delta_that_unpacks_to_too_much_is_given_up(hostile: HostileHost, bomb: Bomb, settings: Settings) -> None:
    assert len(bomb.pack) < 16_384
    remote = serve(hostile, bomb)
    fetch(remote)
    clones.empty(clones.path_of(remote.url.clone_key))
    settings.GIT_MEMORY_BYTES = 80 * MIB
    with pytest.raises(LimitExceeded):
        fetch(remote)
    assert not clones.path_of(remote.url.clone_key).exists()


def test_reading_it_from_a_clone_is_given_up_too(hostile: HostileHost, bomb: Bomb, settings: Settings) -> None:
    remote = serve(hostile, bomb)
    fetch(remote)
    settings.GIT_MEMORY_BYTES = 80 * MIB
    with pytest.raises(LimitExceeded), clones.open_blobs(remote.url.clone_key) as blobs:
        list(blobs.digests([bomb.blob.hex()], largest=1 << 30))


def test_a_clone_over_the_limits_is_not_made_anew(hostile: HostileHost, bomb: Bomb, settings: Settings) -> None:
    remote = serve(hostile, bomb)
    fetch(remote)
    clone = clones.path_of(remote.url.clone_key)
    before = clone.stat().st_ino
    for pack in clone.glob("objects/pack/*"):
        pack.unlink()
    settings.GIT_MEMORY_BYTES = 80 * MIB
    fetches = len(hostile.questions)
    with pytest.raises(LimitExceeded):
        fetch(remote)
    assert clone.stat().st_ino == before
    asked = [question for question in hostile.questions[fetches:] if b"command=fetch" in question.body]
    assert len(asked) == 1


def test_an_answer_that_unpacks_to_too_much_is_given_up(hostile: HostileHost, settings: Settings) -> None:
    zipped = io.BytesIO()
    with gzip.GzipFile(fileobj=zipped, mode="wb", compresslevel=1) as writer:
        for _ in range(160):
            writer.write(packet(b" " * 65_000) * 16)
    assert len(zipped.getvalue()) < MIB
    gzipped = {"Content-Encoding": "gzip"}
    hostile.answer = lambda question: Answer([zipped.getvalue()], headers=gzipped)
    settings.GIT_MEMORY_BYTES = 128 * MIB
    with pytest.raises(LimitExceeded):
        clones.look(clones.Remote(url=RemoteUrl.parse(hostile.url)), "")


@pytest.mark.django_db
def test_only_that_repository_is_left_alone_and_at_once(
    hostile: HostileHost, bomb: Bomb, settings: Settings, alice_app: App
) -> None:
    url = serve(hostile, bomb).url
    repository = Repository.objects.create(clone_key=url.clone_key, url=str(url), owner="acme", name="handbook")
    Watch.objects.create(app=alice_app, repository=repository)
    other = Repository.objects.create(clone_key="other", url=f"{url}-other", owner="acme", name="handbook-other")
    Watch.objects.create(app=alice_app, repository=other)
    rows = [Repository.objects.filter(pk=other.pk).values(), Watch.objects.filter(repository=other).values()]
    before = [list(row.all()) for row in rows]
    settings.GIT_MEMORY_BYTES = 80 * MIB
    assert look.take_snapshot(repository.pk, job_id="test") is None
    repository.refresh_from_db()
    assert repository.last_error_code == "git-limits"
    assert repository.consecutive_failures == 1
    assert repository.circuit_open_until, "not tried again before the next probe"
    assert [list(row.all()) for row in rows] == before, "nobody else is at fault"


@pytest.fixture
def busy_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A git that computes until it is stopped, and starts another one that does."""
    (tmp_path / "git").write_text("#!/bin/sh\nwhile :; do :; done\n")
    (tmp_path / "git").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


@pytest.mark.usefixtures("busy_git")
def test_a_git_that_computes_without_end_is_stopped(tmp_path: Path, settings: Settings) -> None:
    settings.GIT_CPU_SECONDS = 1
    with pytest.raises(LimitExceeded, match="more than 1 s of CPU time"):
        _process.run(Command(["version"], folder=tmp_path, timeout=60))


def test_the_limits_are_those_of_all_that_git_starts(tmp_path: Path, settings: Settings) -> None:
    settings.GIT_MEMORY_BYTES, settings.GIT_CPU_SECONDS = 512 * MIB, 100
    alias = "alias.limits=!ulimit -v; ulimit -S -t; ulimit -f"
    printed = _process.run(
        Command(["-c", alias, "limits"], folder=tmp_path, timeout=20, largest_file=5000, in_clone=False)
    )
    assert printed.split() == [b"524288", b"100", b"10"]


def test_a_fetch_leaves_the_reserve_on_the_disk(
    remote: HostedRepository, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit({"noise.bin": os.urandom(100_000)})
    settings.DISK_RESERVE_BYTES = 1 << 30
    free = SimpleNamespace(free=(1 << 30) + 50_000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    source = clones.Remote(url=RemoteUrl.parse(remote.url))
    with pytest.raises(DiskFull, match="more than the 50000 bytes"):
        fetch(source)
    free.free = 1 << 30
    with pytest.raises(DiskFull, match="Fewer than"):
        fetch(source)
    free.free = 2 << 30
    fetch(source)
