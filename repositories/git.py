"""Running git: hardened, bounded in time, killed as a group, with credentials in its environment alone.

Nothing here decides anything: `clones` is the only caller, and the only room that knows the clone's layout.
"""

import base64
import contextlib
import fcntl
import os
import re
import resource
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

from django.conf import settings
from git import Git

from repositories import network
from repositories.errors import (
    AccessDenied,
    CloneDamaged,
    CommitGone,
    DiskFull,
    GitError,
    GitFailed,
    HostUnavailable,
    InvalidUrl,
    Moved,
    RefNotFound,
    TooLarge,
)
from repositories.remotes import RemoteUrl
from repositories.repo_lock import HeldLock

Listener = Callable[[int, int], None]
_PIPE_SIZE = 1 << 20

# What a parent's environment may say to git (GIT_DIR, GIT_TRACE_CURL, …) must not reach our git.
for _name in [name for name in os.environ if name.startswith("GIT_") and not name.startswith("GIT_PYTHON_")]:
    del os.environ[_name]

_ENVIRONMENT = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ASKPASS": "",
    "GIT_OPTIONAL_LOCKS": "0",
    "HOME": os.devnull,
    "SSH_ASKPASS": "",
    "LC_ALL": "C",
}
_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.askPass": "",
    "credential.helper": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "transfer.fsckObjects": "true",
    "protocol.allow": "never",
    "protocol.https.allow": "always",
    # Git would follow to any address: `ask` follows by itself, where it may.
    "http.followRedirects": "false",
    "http.proxy": "",
    # One pack per fetch, complete or not there at all; a killed unpack-objects would leave half of the files.
    "fetch.unpackLimit": "1",
    # Large contents are streamed, and packs are mapped a piece at a time: memory does not grow with them.
    "core.bigFileThreshold": "8m",
    "core.packedGitWindowSize": "1m",
    "core.packedGitLimit": "8m",
    "core.deltaBaseCacheLimit": "16m",
    "pack.threads": "2",
    # The volume is shared, so the clone may belong to another user's worker.
    "safe.directory": "*",
}
# Harmless flaws of old commits, which would keep many a real repository from being watched.
_FORGIVEN = (
    "badEmail", "badTimezone", "missingEmail", "missingNameBeforeEmail", "missingSpaceBeforeDate",
    "missingSpaceBeforeEmail", "multipleAuthors", "zeroPaddedDate", "zeroPaddedFilemode",
)  # fmt: skip
_CONFIG |= {f"fetch.fsck.{flaw}": "ignore" for flaw in _FORGIVEN}
_TOKEN_USERS = {"gitlab.com": "oauth2", "bitbucket.org": "x-token-auth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where to fetch from, and as whom."""

    url: RemoteUrl
    token: str = ""

    def environment(self) -> dict[str, str]:
        plain = self.url.scheme == "http"
        addresses = network.resolve(self.url.host, self.url.port, plain=plain)
        config = {
            **_CONFIG,
            "http.curloptResolve": f"{self.url.host}:{self.url.port}:{','.join(addresses)}",
            # A host that sends next to nothing for so long is down.
            "http.lowSpeedLimit": "1000",
            "http.lowSpeedTime": str(max(1, round(settings.GIT_STALL_TIMEOUT))),
        }
        if plain:
            config["protocol.http.allow"] = "always"
        if self.token:
            user = _TOKEN_USERS.get(self.url.host, "x-access-token")
            credentials = base64.b64encode(f"{user}:{self.token}".encode()).decode()
            config[f"http.{self.url.base}/.extraHeader"] = f"Authorization: Basic {credentials}"
        return _environment(config)

    def at(self, url: RemoteUrl) -> "Remote":
        """The same repository at another address; the token is for the host that it was given for."""
        return self if url == self.url else Remote(url=url, token=self.token if url.base == self.url.base else "")

    def redact(self, text: str) -> str:
        """No token, no header and no URL with credentials, whatever git chose to print."""
        if self.token:
            text = text.replace(self.token, "[token]")
        text = re.sub(r"(?i)authorization:\s*\S+\s*\S*", "[authorization]", text)
        return re.sub(r"://[^/\s@]+@", "://", text)


def _environment(config: dict[str, str]) -> dict[str, str]:
    numbered = {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (name, value) in enumerate(config.items()):
        numbered[f"GIT_CONFIG_KEY_{number}"] = name
        numbered[f"GIT_CONFIG_VALUE_{number}"] = value
    return {**_ENVIRONMENT, **numbered}


_LOCAL = _environment(_CONFIG)


def ask(remote: Remote, *patterns: str) -> tuple[RemoteUrl, bytes]:
    """`git ls-remote`: what the remote's refs are now, and where they were found. Touches no clone.

    One redirect is followed, as renamed repositories need it, to a host that may be watched.
    """
    try:
        return remote.url, _list_refs(remote, patterns)
    except Moved:
        there = remote.at(_new_address(remote))
    return there.url, _list_refs(there, patterns)


def _list_refs(remote: Remote, patterns: Sequence[str], **environment: str) -> bytes:
    arguments = ["ls-remote", "--symref", "--", str(remote.url), *patterns]
    asking = _Command(arguments, folder=Path("/"), timeout=settings.GIT_ASK_TIMEOUT, remote=remote)
    return _run(replace(asking, more_environment=environment))


def _new_address(remote: Remote) -> RemoteUrl:
    """Where the host redirects to, as git's trace shows it: the request is the same, checked address and all."""
    try:
        _list_refs(remote, ["HEAD"], GIT_TRACE_CURL="1", GIT_TRACE_CURL_NO_DATA="1")
    except Moved as error:
        locations = re.findall(r"(?im)<= recv header: location: *(\S+)", error.trace)
        if locations:
            return _repository_at(locations[-1])
    raise Moved("The host redirects, but does not say whereto.")


def _repository_at(location: str) -> RemoteUrl:
    try:
        return RemoteUrl.parse(location.partition("?")[0].removesuffix("/info/refs"))
    except InvalidUrl as error:
        raise Moved(f"The repository has moved to where it cannot be followed: {error}") from None


def fetch(folder: Path, remote: Remote, refspec: str, *, on_progress: Listener | None = None, held: HeldLock) -> None:
    """Fetch one commit without its history. What exceeds DOCORA_MAX_REPOSITORY_BYTES is cut off by the kernel."""
    arguments = [
        "fetch", "--progress" if on_progress else "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head",
        "--no-recurse-submodules", "--force", "--", str(remote.url), refspec,
    ]  # fmt: skip
    fetching = _Command(
        arguments,
        folder=folder,
        timeout=settings.GIT_TIMEOUT,
        remote=remote,
        held=held,
        on_progress=on_progress,
        largest_file=settings.MAX_REPOSITORY_BYTES,
    )
    try:
        _run(fetching)
    except GitError:
        if _was_cut_off(folder, fetching.largest_file):
            raise TooLarge(f"The repository exceeds the limit of {fetching.largest_file} bytes.") from None
        raise


def _was_cut_off(folder: Path, largest: int) -> bool:
    """Git does not say that the kernel has stopped it, but what it received until then lies there."""
    return any(path.stat().st_size >= largest for path in folder.glob("objects/pack/tmp_pack_*"))


def write(folder: Path, *arguments: str, stdin: bytes = b"", held: HeldLock) -> bytes:
    """A local command that changes the clone."""
    return _run(_Command(arguments, folder=folder, timeout=settings.GIT_TIMEOUT, stdin=stdin, held=held))


def read(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """A local command that only reads what is pinned, and so needs no lock."""
    return _run(_Command(arguments, folder=folder, timeout=settings.GIT_TIMEOUT, stdin=stdin))


@contextlib.contextmanager
def open_process(folder: Path, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A local reading command to talk with: its input and its output."""
    with _child(_Command(arguments, folder=folder, timeout=0), quiet=True) as process:
        answers = _pipe(process.stdout)
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # git goes on inflating while we hash
            with contextlib.suppress(OSError):
                fcntl.fcntl(answers, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        yield _pipe(process.stdin), answers


@dataclass(frozen=True, slots=True)
class _Command:
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
        return (self.remote.environment() if self.remote else _LOCAL) | self.more_environment

    def redact(self, text: str) -> str:
        return self.remote.redact(text) if self.remote else text


def _run(command: _Command) -> bytes:
    with _child(command) as process:
        try:
            output, complaint = _communicate(process, command)
        except subprocess.TimeoutExpired:
            raise HostUnavailable(f"git {command.arguments[0]} took longer than {command.timeout:g} s.") from None
    if command.held:
        command.held.check()
    if process.returncode:
        raise _error(command, process.returncode, command.redact(complaint.decode(errors="replace").strip()))
    return output


def _communicate(process: "subprocess.Popen[bytes]", command: _Command) -> tuple[bytes, bytes]:
    if command.on_progress is None:
        return process.communicate(command.stdin, timeout=command.timeout)
    tail: deque[bytes] = deque(maxlen=100)
    reader = threading.Thread(target=_follow, args=(_pipe(process.stderr), tail, command.on_progress), daemon=True)
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
def _child(command: _Command, *, quiet: bool = False) -> Iterator["subprocess.Popen[bytes]"]:
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
        raise GitFailed("git could not be started.")
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


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise GitFailed("git was started without its pipes.")
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


def _error(command: _Command, status: int, text: str) -> GitError:
    """The first meaning that fits, in the words that it was found in."""
    for error, pattern in _MEANINGS:
        if found := re.search(f"^.*(?:{pattern}).*$", text, re.IGNORECASE | re.MULTILINE):
            said = _without_prefix(found[0])
            return Moved(said, trace=text) if error is Moved else error(said)
    said = next((line for line in text.splitlines() if line.startswith("fatal: ")), text.partition("\n")[0])
    # Without a remote there is nobody else to blame.
    unknown = GitFailed if command.remote else CloneDamaged
    return unknown(_without_prefix(said) or f"git {command.arguments[0]} ended with status {status}.")


def _without_prefix(line: str) -> str:
    return line.removeprefix("fatal: ").removeprefix("error: ")[:500]
