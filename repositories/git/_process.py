"""One run of git: bounded in time, killed as a group, and what its words mean when it fails."""

import contextlib
import os
import re
import resource
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from git import Git

from repositories.errors import (
    AccessDenied,
    CloneDamaged,
    CommitGone,
    DiskFull,
    GitError,
    HostUnavailable,
    Moved,
    RefNotFound,
)
from repositories.git._environment import LOCAL, Remote
from repositories.repo_lock import HeldLock

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

    @property
    def environment(self) -> dict[str, str]:
        return (self.remote.environment() if self.remote else LOCAL) | self.more_environment

    def redact(self, text: str) -> str:
        return self.remote.redact(text) if self.remote else text


def run(command: Command) -> bytes:
    with child(command) as process:
        try:
            output, complaint = _communicate(process, command)
        except subprocess.TimeoutExpired:
            raise HostUnavailable(f"git {command.arguments[0]} took longer than {command.timeout:g} s.") from None
    if command.held:
        command.held.check()
    if process.returncode:
        raise error_of(command, process.returncode, command.redact(complaint.decode(errors="replace").strip()))
    return output


def _communicate(process: "subprocess.Popen[bytes]", command: Command) -> tuple[bytes, bytes]:
    if command.on_progress is None:
        return process.communicate(command.stdin, timeout=command.timeout)
    tail: deque[bytes] = deque(maxlen=100)
    reader = threading.Thread(target=_follow, args=(pipe_of(process.stderr), tail, command.on_progress), daemon=True)
    reader.start()
    process.wait(command.timeout)
    reader.join(timeout=5)
    return b"", b"\n".join(tail)


_PROGRESS = re.compile(rb"Receiving objects: +\d+% \((\d+)/(\d+)\)")


def _follow(stderr: IO[bytes], tail: "deque[bytes]", on_progress: Listener) -> None:
    """Git rewrites its progress line with carriage returns; every other line is kept for the error's sake."""
    rest = b""
    with contextlib.suppress(ValueError, OSError):
        while piece := os.read(stderr.fileno(), 1 << 16):
            *lines, rest = re.split(rb"[\r\n]", rest[-(1 << 16) :] + piece)
            for line in lines:
                if found := _PROGRESS.search(line):
                    on_progress(int(found[1]), int(found[2]))
                else:
                    tail.append(line)
    tail.append(rest)


@contextlib.contextmanager
def child(command: Command, *, quiet: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
    """A git of its own session, which does not outlive this block."""
    if not command.folder.is_dir():
        raise CloneDamaged("The clone is gone.")
    held = command.held
    with contextlib.ExitStack() as until_started:
        # Only the child keeps the file lock: it is free when git has ended, not when we have.
        inherited = (until_started.enter_context(held.inherit()),) if held else ()
        handle = Git(command.folder).execute(
            ["git", *command.arguments],
            istream=subprocess.PIPE,
            as_process=True,
            env=command.environment,
            start_new_session=True,
            pass_fds=inherited,
        )
    process = handle.proc
    if process is None:
        raise GitError("git could not be started.")
    if quiet and process.stderr:
        process.stderr.close()
    try:
        _limit_files(process.pid, command.largest_file)
        with held.guarding(process.pid) if held else contextlib.nullcontext():
            yield process
    finally:
        _end(process)


def _limit_files(pid: int, largest: int) -> None:
    """Git itself has no limit for what it receives. What it starts to receive with inherits this one."""
    if largest and hasattr(resource, "prlimit"):
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (largest, largest))


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


# What git's words mean: what is said outright before what may follow from it.
_MEANINGS: list[tuple[type[GitError], str]] = [
    (DiskFull, r"no space left on device|disk quota exceeded"),
    (Moved, r"returned error: 30[1278]"),
    (AccessDenied, r"authentication failed|could not read (username|password)|returned error: (401|403|404)"),
    (HostUnavailable, r"returned error: (429|5\d\d)|could not resolve|failed to connect|couldn't connect"),
    (
        HostUnavailable,
        r"operation too slow|operation timed out|connection (refused|timed out)|recv failure|empty reply",
    ),
    (HostUnavailable, r"rpc failed|early eof|the remote end hung up|unexpected disconnect|transfer closed|ssl"),
    (CommitGone, r"not our ref|unadvertised object"),
    (AccessDenied, r"repository .*not found|access denied|not authorized"),
    (RefNotFound, r"couldn't find remote ref|remote branch .* not found"),
    (CloneDamaged, r"not a git repository|bad object|unable to read|corrupt|loose object|index-pack died"),
    (CloneDamaged, r"missing (blob|tree|commit|object)|inflate:|bad tree|unable to (lock|create).*\.lock"),
    (CloneDamaged, r"bad shallow line|shallow file|bad config|unable to parse|did not send all necessary objects"),
]


def error_of(command: Command, status: int, text: str) -> GitError:
    """The first meaning that fits, in the words that it was found in."""
    for error, pattern in _MEANINGS:
        if found := re.search(f"^.*(?:{pattern}).*$", text, re.IGNORECASE | re.MULTILINE):
            if error is AccessDenied:
                return AccessDenied(_refusal(command.remote))
            said = _without_prefix(found[0])
            return Moved(said, trace=text) if error is Moved else error(said)
    said = next((line for line in text.splitlines() if line.startswith("fatal: ")), text.partition("\n")[0])
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


def _without_prefix(line: str) -> str:
    return line.removeprefix("fatal: ").removeprefix("error: ")[:500]
