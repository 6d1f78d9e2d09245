"""One run of git: bounded in time, killed as a group, and what its words mean when it fails."""

import contextlib
import math
import os
import re
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from django.conf import settings
from git import Git
from git.exc import GitCommandNotFound

from repositories.errors import (
    AccessDenied,
    CloneDamaged,
    CommitGone,
    DiskFull,
    GitError,
    HostUnavailable,
    LimitExceeded,
    Moved,
    RefNotFound,
    TooLarge,
)
from repositories.git import _environment
from repositories.git._environment import LOCAL, Remote
from repositories.repo_lock import HeldLock

_NOT_STARTED = {126, 127}
_LONGEST_OUTPUT = 1 << 23
# Of what git says, and so of what a host says through it, so many last bytes are looked at, and so much of a line.
_LONGEST_WORDS = 1 << 16
_LONGEST_LINE = 1000

Listener = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Command:
    """One run of git."""

    arguments: Sequence[str]
    folder: Path
    timeout: float
    remote: Remote | None = None
    stdin: bytes = b""
    held: HeldLock | None = None
    on_progress: Listener | None = None
    largest_file: int = 0
    more_environment: dict[str, str] = field(default_factory=dict)
    in_clone: bool = True

    @property
    def environment(self) -> dict[str, str]:
        """With the clone itself as the repository: git must not look for one in the folders around a damaged clone.

        By the working directory, not by its path: a clone that is renamed while git reads stays readable.
        """
        place = {
            "GIT_DIR": "." if self.in_clone else os.devnull,
            "GIT_CEILING_DIRECTORIES": str(self.folder.parent),
        }
        return (self.remote.environment() if self.remote else LOCAL) | place | self.more_environment

    def redact(self, text: str) -> str:
        return self.remote.redact(text) if self.remote else text


def run(command: Command) -> bytes:
    with child(command) as git:
        try:
            output = _read_all(git.process, command)
            if command.on_progress:
                git.words.join(timeout=5)  # the caller has heard all of it when this returns, and hears nothing later
        except subprocess.TimeoutExpired:
            raise HostUnavailable(f"git {command.arguments[0]} took longer than {command.timeout:g} s.") from None
    if git.process.returncode:
        raise git.error()
    return output


def _read_all(process: "subprocess.Popen[bytes]", command: Command) -> bytes:
    """What git prints until it ends, unless it prints too much or takes too long."""
    deadline = time.monotonic() + command.timeout
    with contextlib.suppress(BrokenPipeError), pipe_of(process.stdin) as stdin:
        stdin.write(command.stdin)
    stdout = pipe_of(process.stdout)
    output = bytearray()
    with selectors.DefaultSelector() as readable:
        readable.register(stdout, selectors.EVENT_READ)
        while readable.select(deadline - time.monotonic()):
            piece = os.read(stdout.fileno(), 1 << 16)
            if not piece:
                process.wait(max(0, deadline - time.monotonic()))
                return bytes(output)
            output += piece
            if len(output) > _LONGEST_OUTPUT:
                raise TooLarge(f"git {command.arguments[0]} printed more than {_LONGEST_OUTPUT} bytes.")
    raise subprocess.TimeoutExpired(command.arguments[0], command.timeout)


_PROGRESS = re.compile(rb"Receiving objects: +\d+% \((\d+)/(\d+)\)")


class _Words(threading.Thread):
    """Git's standard error: progress is passed on, the end of the rest is kept for the error's sake.

    Read at all times, because git waits when the pipe is full, and never kept whole: a host may send words without end.
    """

    def __init__(self, stderr: IO[bytes], on_progress: Listener | None) -> None:
        super().__init__(name="words of git", daemon=True)
        self._pipe = os.dup(stderr.fileno())  # ours to close: a grandchild of git may keep the pipe open for longer
        self._on_progress = on_progress
        self._kept = b""

    def run(self) -> None:
        try:
            while piece := os.read(self._pipe, 1 << 16):
                if self._on_progress and (found := _PROGRESS.findall(self._kept[-80:] + piece)):
                    self._on_progress(int(found[-1][0]), int(found[-1][1]))
                self._kept = (self._kept + piece)[-_LONGEST_WORDS:]
        finally:
            os.close(self._pipe)

    def text(self) -> str:
        """After git has ended."""
        self.join(timeout=5)
        return self._kept.decode(errors="replace").strip()


@dataclass(frozen=True, slots=True)
class Child:
    """A running git, and what it says."""

    command: Command
    process: "subprocess.Popen[bytes]"
    words: _Words

    def error(self) -> GitError:
        """Why git has ended."""
        return error_of(self.command, self.process.returncode, self.command.redact(self.words.text()))

    def over_limit(self) -> LimitExceeded | None:
        """Why git stopped answering, if it was for a limit of ours and not for what it read."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self.process.wait(timeout=1) and isinstance(error := self.error(), LimitExceeded):
                return error
        return None


@contextlib.contextmanager
def child(command: Command) -> Iterator[Child]:
    """A git that leads a process group of its own, and does not outlive this block.

    Not a session of its own: Linux shares the processor between sessions, and git would not give way like its worker.
    """
    # GitPython would start git somewhere else if it may not be started there.
    if not os.access(command.folder, os.X_OK):
        raise CloneDamaged("The clone is gone.")
    held = command.held
    with contextlib.ExitStack() as until_started:
        # Only the child keeps the file lock: it is free when git has ended, not when we have.
        inherited = (until_started.enter_context(held.inherit()),) if held else ()
        process = _start(command, inherited)
    try:
        words = _Words(pipe_of(process.stderr), command.on_progress)
        words.start()
        with held.guarding(process.pid) if held else contextlib.nullcontext():
            yield Child(command, process, words)
    finally:
        _end(process)


def _start(command: Command, inherited: tuple[int, ...]) -> "subprocess.Popen[bytes]":
    environment = command.environment
    blank = _environment.blank(environment)
    try:
        handle = Git(command.folder).execute(
            ["/bin/sh", "-c", _script(command, blank), "git", *command.arguments],
            istream=subprocess.PIPE,
            as_process=True,
            env=blank | environment,
            process_group=0,
            pass_fds=inherited,
        )
    except GitCommandNotFound:  # what GitPython makes of a working directory that is gone, too
        raise CloneDamaged("The clone is gone.") from None
    process, handle.proc = handle.proc, None  # its destructor would end git
    if process is None:
        raise GitError("git could not be started.")
    return process


def _script(command: Command, blank: Iterable[str]) -> str:
    """A shell that becomes git. What it sets holds from git's first moment on, for all that git starts.

    Its parent could set limits only after the start, when git may have children already. A limit that cannot be set
    is lower already, or unknown to this system.
    """
    # To git, an empty GIT_WORK_TREE or GIT_SHALLOW_FILE is not the same as none.
    unset = " ".join(name for name in blank if name.startswith("GIT_") and name.isidentifier())
    limits = [f"ulimit -v {settings.GIT_MEMORY_BYTES // 1024}", f"ulimit -S -t {settings.GIT_CPU_SECONDS}"]
    if command.largest_file:
        limits.append(f"ulimit -f {math.ceil(command.largest_file / 512)}")
    return f'unset {unset}; {{ {"; ".join(limits)}; }} 2>/dev/null; exec git "$@"'


def pipe_of(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise GitError("git was started without its pipes.")
    return pipe


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe:
            with contextlib.suppress(OSError):
                pipe.close()
    process.wait()


# The error that a pattern in git's words stands for. The first match counts: causes before their consequences.
_MEANINGS: list[tuple[type[GitError], str]] = [
    (LimitExceeded, r"out of memory|cannot allocate memory|unable to create thread|died of signal (9|24)"),
    (DiskFull, r"no space left on device|disk quota exceeded"),
    (Moved, r"returned error: 30[1278]"),
    (AccessDenied, r"authentication failed|could not read (username|password)|returned error: (401|403|404)"),
    (HostUnavailable, r"returned error: (429|5\d\d)|could not resolve|failed to connect|couldn't connect"),
    (
        HostUnavailable,
        r"operation too slow|operation timed out|connection (refused|timed out)|recv failure|empty reply",
    ),
    (HostUnavailable, r"rpc failed|early eof|the remote end hung up|unexpected disconnect|transfer closed"),
    (RefNotFound, r"couldn't find remote ref|remote branch .* not found"),  # before words that a branch's name may have
    (HostUnavailable, r"ssl|tls|certificate"),
    (CommitGone, r"not our ref|unadvertised object"),
    (AccessDenied, r"repository .*not found|access denied|not authorized"),
    (CloneDamaged, r"not a git repository|bad object|unable to read|corrupt|loose object|index-pack died"),
    (CloneDamaged, r"missing (blob|tree|commit|object)|inflate:|bad tree|unable to (lock|create).*\.lock"),
    (CloneDamaged, r"bad shallow line|shallow file|bad config|unable to parse|did not send all necessary objects"),
]


def error_of(command: Command, status: int, text: str) -> GitError:
    """The first meaning that fits, in the words that it was found in."""
    if status in _NOT_STARTED:
        return GitError("git is not installed where this process runs, or not on its PATH.")
    if status == -signal.SIGXCPU:
        return LimitExceeded(f"git {command.arguments[0]} took more than {settings.GIT_CPU_SECONDS} s of CPU time.")
    # Cut first: a search may take the square of a line's length.
    lines = [line[:_LONGEST_LINE] for line in text.splitlines() if line]
    # Without the URL: a repository may be called openssl.
    searched = [re.sub(r"https?://\S*", "", line) for line in lines]
    for error, pattern in _MEANINGS:
        found = (at for at, line in enumerate(searched) if re.search(pattern, line, re.IGNORECASE))
        if (at := next(found, None)) is not None:
            said = lines[at]
            if error is AccessDenied:
                return AccessDenied(_refusal(command.remote))
            return Moved(_without_prefix(said), trace=text) if error is Moved else error(_without_prefix(said))
    said = next((line for line in lines if line.startswith("fatal: ")), lines[-1] if lines else "")
    # Without a remote there is nobody else to blame.
    unknown: type[GitError] = GitError if command.remote else CloneDamaged
    return unknown(_without_prefix(said) or f"git {command.arguments[0]} ended with status {status}.")


def _refusal(remote: Remote | None) -> str:
    """In our own words: git asks for the password of a repository that is not there."""
    return (
        "The repository does not exist, or the token cannot read it."
        if remote and remote.token
        else "The repository does not exist, or needs a token that can read it."
    )


# What curl says of a host, in the words that a failed delivery has.
_OF_A_HOST = [
    (re.compile(r"failed to connect to (\S+) port (\d+).*refused", re.IGNORECASE), r"connection refused by \1:\2"),
    (re.compile(r"failed to connect to (\S+) port (\d+).*timed out", re.IGNORECASE), r"no answer from \1:\2"),
    (re.compile(r"failed to connect to (\S+) port (\d+).*", re.IGNORECASE), r"no connection to \1:\2"),
    (re.compile(r"could not resolve host: (\S+)", re.IGNORECASE), r"the name of \1 cannot be resolved"),
]


def _without_prefix(line: str) -> str:
    """The URL before the reason is that of the repository, which is shown beside it."""
    said = re.sub(r"^unable to access '[^']*': ", "", line.removeprefix("fatal: ").removeprefix("error: "))
    words = (found.expand(template) for pattern, template in _OF_A_HOST if (found := pattern.search(said)))
    return next(words, said)[:500]
