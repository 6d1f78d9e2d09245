"""A bare git repository to commit into without a work tree.

Commits go through `git fast-import`, so that they take milliseconds and may hold what no file system can:
any bytes as a path, any mode as an entry.
"""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

GIT = shutil.which("git") or "git"
# The cast must not depend on whose machine it plays on.
GIT_ENVIRONMENT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "LC_ALL": "C",
}
_AUTHOR = b"Ada Example <ada@example.org>"
_PLAIN = frozenset(b"/._-") | frozenset(range(0x30, 0x3A)) | frozenset(range(0x41, 0x5B)) | frozenset(range(0x61, 0x7B))


@dataclass(frozen=True, slots=True)
class Entry:
    """A tree entry that is more than a plain file: its mode and its content (of a submodule, the SHA)."""

    content: bytes
    mode: str


def executable(content: bytes) -> Entry:
    return Entry(content, "100755")


def symlink(target: bytes) -> Entry:
    return Entry(target, "120000")


def submodule(sha: str) -> Entry:
    return Entry(sha.encode(), "160000")


Content = str | bytes | Entry | None
# Invariant in its keys, a Mapping has to be named for each kind of path.
Changes = Mapping[str, Content] | Mapping[bytes, Content]


class BareRepository:
    """One bare repository; its methods may be called from several threads."""

    def __init__(self, path: Path, *, default_branch: str = "main", copy_of: "BareRepository | None" = None) -> None:
        """An empty one, or one with all that another one has."""
        self.path = path
        self._lock = threading.RLock()
        if copy_of:
            shutil.copytree(copy_of.path, path)
            return
        path.mkdir(parents=True)
        # Without git's templates, which are examples of hooks.
        self.git("init", "--quiet", "--bare", "--template=", f"--initial-branch={default_branch}")

    def git(self, *arguments: str | bytes, stdin: bytes = b"") -> bytes:
        """Run any git command in the repository; returns what it printed."""
        environment = GIT_ENVIRONMENT | {"GIT_DIR": str(self.path)}
        done = subprocess.run([GIT, *arguments], env=environment, input=stdin, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"git {arguments[0]!r} failed: {done.stderr.decode(errors='replace')}")
        return done.stdout

    @property
    def default_branch(self) -> str:
        """Read from its file: a git that prints it takes a hundred times as long."""
        return (self.path / "HEAD").read_text().strip().removeprefix("ref: refs/heads/")

    def tip(self, branch: str | None = None) -> str | None:
        """The commit that a branch (the default one, if none is named) points to; None while it has none."""
        name = f"refs/heads/{branch or self.default_branch}"
        with suppress(OSError):  # in a file of its own, as git looks for it first
            return (self.path / name).read_text().strip()
        return self.git("for-each-ref", "--format=%(objectname)", name).decode().strip() or None

    def commit(
        self,
        changes: Changes,
        message: str = "Change files",
        *,
        branch: str | None = None,
        renames: Mapping[str, str] | None = None,
    ) -> str:
        """Commit on top of a branch and return the SHA; None as content deletes, renames come first."""
        commands = [*_renames(renames or {}), *_changes(changes)]
        with self._lock:
            branch = branch or self.default_branch
            return self._import(branch, self.tip(branch), message, commands)

    def rename(self, old: str, new: str, message: str = "Rename a file") -> str:
        return self.commit({}, message, renames={old: new})

    def rewrite(self, changes: Changes, message: str = "Rewrite history", *, branch: str | None = None) -> str:
        """A force-push: the branch's last commit is replaced by another one that does not contain it."""
        with self._lock:
            branch = branch or self.default_branch
            old = self.tip(branch)
            parents = self.git("rev-list", "--parents", "--max-count=1", old or "HEAD").decode().split()[1:]
            return self._import(branch, parents[0] if parents else None, message, _changes(changes))

    def point(self, branch: str, sha: str) -> None:
        """Make a branch, or push it by force, so that it points to a commit."""
        self.git("update-ref", f"refs/heads/{branch}", sha)

    def delete_branch(self, branch: str) -> None:
        self.git("update-ref", "-d", f"refs/heads/{branch}")

    def set_default_branch(self, branch: str) -> None:
        self.git("symbolic-ref", "HEAD", f"refs/heads/{branch}")

    def files(self, commit: str | None = None) -> dict[str, bytes]:
        """Every file and symlink of a commit (the tip of the default branch, if none is named).

        Bytes of a path that are not UTF-8 are surrogate escapes.
        """
        commit = commit or self.tip()
        if commit is None:
            return {}
        listing = self.git("ls-tree", "-r", "-z", "--full-tree", commit).split(b"\0")[:-1]
        blobs = [_path_and_object(line) for line in listing if b" blob " in line]
        output = self.git("cat-file", "--batch", stdin=b"".join(name + b"\n" for _, name in blobs))
        contents = _batch(output)
        return {path.decode(errors="surrogateescape"): next(contents) for path, _ in blobs}

    def _import(self, branch: str, parent: str | None, message: str, commands: Iterable[bytes]) -> str:
        text = message.encode()
        head = [
            b"feature done\n",
            b"commit refs/heads/%s\nmark :1\n" % branch.encode(),
            b"committer %s %d +0000\n" % (_AUTHOR, time.time()),
            b"data %d\n%s\n" % (len(text), text),
            b"from %s\n" % parent.encode() if parent else b"",
        ]
        stream = b"".join([*head, *commands, b"\nget-mark :1\ndone\n"])
        return self.git("fast-import", "--quiet", "--force", "--date-format=raw", stdin=stream).decode().strip()


def _changes(changes: Changes) -> Iterator[bytes]:
    for path, content in changes.items():
        yield _change(_quoted(path), content)


def _change(path: bytes, content: Content) -> bytes:
    match content:
        case None:
            return b"D %s\n" % path
        case Entry(content=sha, mode="160000"):
            return b"M 160000 %s %s\n" % (sha, path)
        case Entry(content=data, mode=mode):
            return b"M %s inline %s\ndata %d\n%s\n" % (mode.encode(), path, len(data), data)
        case str():
            return _change(path, content.encode())
        case bytes():
            return _change(path, Entry(content, "100644"))


def _renames(renames: Mapping[str, str]) -> Iterator[bytes]:
    for old, new in renames.items():
        yield b"R %s %s\n" % (_quoted(old), _quoted(new))


def _quoted(path: str | bytes) -> bytes:
    raw = path.encode(errors="surrogateescape") if isinstance(path, str) else path
    return b'"%s"' % b"".join(bytes([byte]) if byte in _PLAIN else b"\\%03o" % byte for byte in raw)


def _path_and_object(line: bytes) -> tuple[bytes, bytes]:
    """The path and the object's name in one line of `ls-tree -r -z`."""
    description, path = line.split(b"\t", 1)
    return path, description.split(b" ")[2]


def _batch(output: bytes) -> Iterator[bytes]:
    """The contents in the output of `cat-file --batch`."""
    position = 0
    while position < len(output):
        start = output.index(b"\n", position) + 1
        size = int(output[position:start].rsplit(b" ", 1)[1])
        yield output[start : start + size]
        position = start + size + 1
