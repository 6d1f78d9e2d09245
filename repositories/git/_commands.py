"""What Docora asks of git. `clones` is the only caller, and the only room that knows the clone's layout."""

import contextlib
import fcntl
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from django.conf import settings

from repositories.errors import CloneDamaged, DiskFull, GitError, InvalidUrl, Moved, TooLarge
from repositories.git._environment import Remote
from repositories.git._process import Command, Listener, child, pipe_of, run
from repositories.git.urls import RemoteUrl
from repositories.repo_lock import HeldLock

_PIPE_SIZE = 1 << 20


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
    asking = Command(arguments, folder=Path("/"), timeout=settings.GIT_ASK_TIMEOUT, remote=remote, in_clone=False)
    return run(replace(asking, more_environment=environment))


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
    """Fetch one commit without its history.

    The kernel stops a git that writes a file larger than DOCORA_MAX_REPOSITORY_BYTES, or than the room on the disk.
    """
    room = shutil.disk_usage(folder).free - settings.DISK_RESERVE_BYTES
    if room <= 0:
        raise DiskFull(f"Fewer than {settings.DISK_RESERVE_BYTES} bytes are free where the clones are.")
    arguments = [
        "fetch", "--progress" if on_progress else "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head",
        "--no-recurse-submodules", "--force", "--", str(remote.url), refspec,
    ]  # fmt: skip
    fetching = Command(
        arguments,
        folder=folder,
        timeout=settings.GIT_TIMEOUT,
        remote=remote,
        held=held,
        on_progress=on_progress,
        largest_file=min(settings.MAX_REPOSITORY_BYTES, room),
    )
    try:
        run(fetching)
    except GitError:
        if _was_cut_off(folder, fetching.largest_file):
            if fetching.largest_file == room:
                raise DiskFull(f"The repository needs more than the {room} bytes that are free for it.") from None
            raise TooLarge(f"The repository exceeds the limit of {fetching.largest_file} bytes.") from None
        raise


def _was_cut_off(folder: Path, largest: int) -> bool:
    """Git does not say that the kernel has stopped it, but what it received until then lies there."""
    return any(path.stat().st_size >= largest for path in folder.glob("objects/pack/tmp_pack_*"))


def create(folder: Path, object_format: str, *, held: HeldLock) -> None:
    """An empty bare repository at a path where nothing is yet."""
    options = ("--quiet", "--bare", "--template=", "--initial-branch=main", f"--object-format={object_format}")
    write(folder.parent, "init", *options, folder.name, held=held)


def write(folder: Path, *arguments: str, stdin: bytes = b"", held: HeldLock) -> bytes:
    """A local command that changes the clone."""
    return run(Command(arguments, folder=folder, timeout=settings.GIT_TIMEOUT, stdin=stdin, held=held))


def read(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    """A local command that only reads what is pinned, and so needs no lock."""
    return run(Command(arguments, folder=folder, timeout=settings.GIT_TIMEOUT, stdin=stdin))


@contextlib.contextmanager
def open_process(folder: Path, *arguments: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A local reading command to talk with: its input and its output."""
    with child(Command(arguments, folder=folder, timeout=0)) as git:
        answers = pipe_of(git.process.stdout)
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # git goes on inflating while we hash
            with contextlib.suppress(OSError):
                fcntl.fcntl(answers, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        try:
            yield pipe_of(git.process.stdin), answers
        except CloneDamaged:
            if error := git.over_limit():
                raise error from None
            raise
