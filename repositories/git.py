"""Running git: hardened, bounded in time, killed as a group, with credentials in its environment alone.

Nothing here decides anything: `clones` is the only caller, and the only room that knows the clone's layout.
"""

import base64
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.conf import settings
from git import Git

from repositories import network
from repositories.errors import AccessDenied, CloneDamaged, GitError, GitFailed, HostUnavailable, RefNotFound
from repositories.remotes import RemoteUrl
from repositories.repo_lock import HeldLock

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
    "http.followRedirects": "false",
    "http.proxy": "",
    # A host that sends next to nothing for a minute is down.
    "http.lowSpeedLimit": "1000",
    "http.lowSpeedTime": "60",
    # The volume is shared, so the clone may belong to another user's worker.
    "safe.directory": "*",
}
_TOKEN_USERS = {"gitlab.com": "oauth2", "bitbucket.org": "x-token-auth"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where to fetch from, and as whom."""

    url: RemoteUrl
    token: str = ""

    def environment(self) -> dict[str, str]:
        plain = self.url.scheme == "http"
        addresses = network.resolve(self.url.host, self.url.port, plain=plain)
        config = {**_CONFIG, "http.curloptResolve": f"{self.url.host}:{self.url.port}:{','.join(addresses)}"}
        if plain:
            config["protocol.http.allow"] = "always"
        if self.token:
            user = _TOKEN_USERS.get(self.url.host, "x-access-token")
            credentials = base64.b64encode(f"{user}:{self.token}".encode()).decode()
            config[f"http.{self.url.base}/.extraHeader"] = f"Authorization: Basic {credentials}"
        return _environment(config)

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


def ask(remote: Remote, *patterns: str) -> bytes:
    """`git ls-remote`: what the remote's refs are now. Touches no clone."""
    arguments = ["ls-remote", "--symref", "--", str(remote.url), *patterns]
    return _run(arguments, folder=Path("/"), remote=remote, timeout=settings.GIT_ASK_TIMEOUT)


def fetch(folder: Path, remote: Remote, refspec: str, *, held: HeldLock) -> None:
    arguments = [
        "fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--force",
        "--", str(remote.url), refspec,
    ]  # fmt: skip
    _run(arguments, folder=folder, remote=remote, timeout=settings.GIT_TIMEOUT, held=held)


def write(folder: Path, *arguments: str, stdin: bytes = b"", held: HeldLock) -> bytes:
    """A local command that changes the clone."""
    return _run(arguments, folder=folder, timeout=settings.GIT_TIMEOUT, stdin=stdin, held=held)


def read(folder: Path, *arguments: str) -> bytes:
    """A local command that only reads what is pinned, and so needs no lock."""
    return _run(arguments, folder=folder, timeout=settings.GIT_TIMEOUT)


@contextlib.contextmanager
def open_process(folder: Path, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A local reading command to talk with: its input and its output."""
    with _child(arguments, folder=folder, environment=_LOCAL, stdin=subprocess.PIPE, quiet=True) as process:
        yield _pipe(process.stdin), _pipe(process.stdout)


def _run(
    arguments: Sequence[str],
    *,
    folder: Path,
    timeout: float,
    remote: Remote | None = None,
    stdin: bytes = b"",
    held: HeldLock | None = None,
) -> bytes:
    environment = remote.environment() if remote else _LOCAL
    with _child(arguments, folder=folder, environment=environment, stdin=subprocess.PIPE, held=held) as process:
        try:
            output, complaint = process.communicate(stdin, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise HostUnavailable(f"git {arguments[0]} took longer than {timeout:g} s.") from None
    if held:
        held.check()
    if process.returncode:
        text = complaint.decode(errors="replace").strip()
        raise _error(arguments[0], process.returncode, remote.redact(text) if remote else text)
    return bytes(output)


@contextlib.contextmanager
def _child(
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: dict[str, str],
    stdin: int,
    held: HeldLock | None = None,
    quiet: bool = False,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A git of its own session, which does not outlive this block."""
    if not folder.is_dir():
        raise CloneDamaged("The clone is gone.")
    with contextlib.ExitStack() as until_started:
        # Only the child keeps the file lock: it is free when git has ended, not when we have.
        inherited = (until_started.enter_context(held.inherit()),) if held else ()
        handle = Git(folder).execute(
            ["git", *arguments],
            istream=stdin,
            as_process=True,
            env=environment,
            start_new_session=True,
            pass_fds=inherited,
        )
    process = handle.proc
    if process is None:
        raise GitFailed("git could not be started.")
    if quiet and process.stderr:
        process.stderr.close()
    try:
        with held.guarding(process.pid) if held else contextlib.nullcontext():
            yield process
    finally:
        _end(process)


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


_MEANINGS: list[tuple[type[GitError], str]] = [
    (
        HostUnavailable,
        r"returned error: (429|5\d\d)|could not resolve|failed to connect|connection (refused|timed out)",
    ),
    (
        HostUnavailable,
        r"operation too slow|operation timed out|recv failure|empty reply|ssl|rpc failed|early eof",
    ),
    (HostUnavailable, r"the remote end hung up|unexpected disconnect|transfer closed|couldn't connect"),
    (AccessDenied, r"authentication failed|could not read (username|password)|returned error: (401|403|404)"),
    (AccessDenied, r"repository .*not found|access denied|not authorized"),
    (RefNotFound, r"couldn't find remote ref|remote branch .* not found"),
    (CloneDamaged, r"not a git repository|bad object|unable to read|corrupt|loose object|index-pack died"),
    (
        CloneDamaged,
        r"missing (blob|tree|commit|object)|inflate:|bad tree|shallow file|unable to (lock|create).*\.lock",
    ),
]


def _error(command: str, status: int, text: str) -> GitError:
    """What git's words mean; the first meaning that fits."""
    for error, pattern in _MEANINGS:
        if re.search(pattern, text, re.IGNORECASE):
            return error(_first_line(text))
    return GitFailed(_first_line(text) or f"git {command} ended with status {status}.")


def _first_line(text: str) -> str:
    lines = [line.removeprefix("fatal: ").removeprefix("error: ") for line in text.splitlines() if line.strip()]
    fatal = [line.removeprefix("fatal: ") for line in text.splitlines() if line.startswith("fatal: ")]
    return (fatal or lines or [""])[0][:500]
