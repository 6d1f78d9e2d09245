"""Repositories on the git server: made by `git fast-import`, so that 100,000 files take seconds."""

import itertools
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GIT_ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
Files = Iterable[tuple[str, bytes]]
_BRANCH = "refs/heads/main"


@dataclass(frozen=True, slots=True)
class Shape:
    """What a generated repository is like."""

    files: int
    bytes_in_all: int

    @property
    def title(self) -> str:
        return f"{self.files:,} files / {self.bytes_in_all / 1e6:,g} MB"


def git(*words: str, folder: Path | None = None, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["git", *words], cwd=folder, env=GIT_ENVIRONMENT, input=stdin, capture_output=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"git {' '.join(words)}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


class Remote:
    """One bare repository on the git server."""

    def __init__(self, path: Path, name: str, url: str) -> None:
        self.path, self.name, self.url = path, name, url

    @property
    def tip(self) -> str:
        return git("rev-parse", _BRANCH, folder=self.path).decode().strip()

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Commit these files on top of what is there."""
        return _import(self.path, files.items(), parent=f"{_BRANCH}^0")

    def replace(self, files: Mapping[str, bytes]) -> str:
        """Push a commit by force that has no parent and only these files."""
        return _import(self.path, files.items())

    def point_to(self, sha: str) -> None:
        """Push by force."""
        git("update-ref", _BRANCH, sha, folder=self.path)

    def paths(self) -> list[str]:
        return git("ls-tree", "-r", "-z", "--name-only", _BRANCH, folder=self.path).decode().split("\0")[:-1]


def create(path: Path, files: Files) -> None:
    """A bare repository with one commit."""
    git("init", "--quiet", "--bare", "--initial-branch=main", str(path))
    _import(path, files)


def link(source: Path, path: Path) -> None:
    """A copy whose packs are the same files on disk: git never changes a file in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source, path, copy_function=os.link)


def _import(path: Path, files: Files, *, parent: str = "") -> str:
    # Through a file: git may print before it has read all.
    with tempfile.TemporaryFile() as stream:
        now = int(time.time())
        stream.write(b"feature done\ncommit %s\nmark :1\n" % _BRANCH.encode())
        stream.write(b"committer Ada Example <ada@example.org> %d +0000\ndata 6\nChange\n" % now)
        stream.write(f"from {parent}\n".encode() if parent else b"")
        for name, content in files:
            stream.write(b'M 100644 inline "%s"\ndata %d\n%s\n' % (name.encode(), len(content), content))
        stream.write(b"\nget-mark :1\ndone\n")
        stream.seek(0)
        # Without deltas: chains of them between files that have nothing to do with each other are slow to read.
        command = ["git", "fast-import", "--quiet", "--force", "--date-format=raw", "--depth=0"]
        done = subprocess.run(
            command, cwd=path, env=GIT_ENVIRONMENT, stdin=stream, stdout=subprocess.PIPE, check=True, timeout=600
        )
    return done.stdout.decode().strip()


def generate(shape: Shape) -> Iterator[tuple[str, bytes]]:
    """Four texts to one picture, mostly small and a few large, as repositories have them; the same in every run."""
    chance = random.Random(1)  # noqa: S311  not a secret
    sentences = _sentences(chance)
    average = shape.bytes_in_all / shape.files
    for number in range(shape.files):
        size = min(int(chance.expovariate(1 / average)) + 20, 900_000)
        if number % 5 == 0:
            yield f"img/d{number % 100}/f{number}.png", chance.randbytes(size)
        else:
            text = b"".join(chance.choices(sentences, k=size // 60 + 1))[:size]
            yield f"docs/d{number % 100}/s{number % 7}/f{number}.md", b"# %d\n%s" % (number, text)


def texts(count: int, size: int, *, seed: int = 1) -> dict[str, bytes]:
    """Text files of one size; another seed gives other contents under the same names."""
    chance = random.Random(seed)  # noqa: S311  not a secret
    sentences = _sentences(chance)
    contents = (b"".join(chance.choices(sentences, k=size // 50 + 1))[:size] for _ in itertools.count())
    return {f"docs/d{number % 50}/f{number}.md": next(contents) for number in range(count)}


def _sentences(chance: random.Random) -> list[bytes]:
    """About 60 bytes each."""
    letters = b"etaoinshrdlucmfwyp"
    words = [bytes(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(4096)]
    return [b" ".join(chance.choices(words, k=9)).capitalize() + b".\n" for _ in range(4096)]
