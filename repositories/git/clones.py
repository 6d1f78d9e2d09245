"""The shared bare clones: one per remote, fetched under its lock, read without one.

Whatever is read names a commit that is pinned by a ref of its own, so a fetch beside it can neither
tear nor take it away. Whatever writes takes `held`, the proof that the lock is ours.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings

from repositories.errors import CloneDamaged, GitError, RefNotFound
from repositories.git import _commands
from repositories.git._environment import Remote
from repositories.git._process import Listener
from repositories.git.blobs import Blobs
from repositories.git.refs import object_format
from repositories.git.urls import RemoteUrl, is_clone_key
from repositories.repo_lock import HeldLock

__all__ = [
    "Blobs",
    "Listener",
    "Remote",
    "Tip",
    "Usage",
    "count_packs",
    "discard",
    "empty",
    "keys_on_disk",
    "leftovers",
    "look",
    "open_blobs",
    "pack",
    "path_of",
    "pin_of",
    "pinned_since",
    "pins",
    "refresh",
    "unpin",
    "usage",
]

log = logging.getLogger("docora.clones")

_PIN = "refs/docora/pin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The commit that a ref stands for at the remote, and where that was found: a renamed repository has moved.

    `target` is what the ref names outright: the commit, or an annotated tag of it.
    """

    sha: str
    target: str
    source: str
    url: RemoteUrl

    @property
    def object_format(self) -> str:
        return object_format(self.sha)

    @property
    def branch(self) -> str:
        return self.source.removeprefix("refs/heads/").removeprefix("refs/tags/")


@dataclass(frozen=True, slots=True)
class Usage:
    clone_key: str
    bytes: int
    last_used: float


def path_of(clone_key: str) -> Path:
    """Where the clone is; ValueError for what is no key: a message in Redis may have one that leads elsewhere."""
    if not is_clone_key(clone_key):
        raise ValueError(f"{clone_key!r:.200} is not the key of a clone")
    return _root() / clone_key


def look(remote: Remote, ref: str) -> Tip | None:
    """The remote's tip of ref (empty: its default branch); None if the repository is empty."""
    patterns = [f"refs/heads/{ref}", f"refs/tags/{ref}", f"refs/tags/{ref}^{{}}"] if ref else ["HEAD"]
    found: dict[str, str] = {}
    url, listing = _commands.ask(remote, *patterns)
    for line in listing.decode(errors="replace").splitlines():
        value, _, name = line.partition("\t")
        if value.startswith("ref: ") and name == "HEAD":
            found["symref"] = value.removeprefix("ref: ")
        else:
            found[name] = value
    if not ref:
        head = found.get("HEAD")
        return Tip(sha=head, target=head, source=found.get("symref", "HEAD"), url=url) if head else None
    branch, tag, peeled = patterns
    if branch in found:
        return Tip(sha=found[branch], target=found[branch], source=branch, url=url)
    if tag in found:
        return Tip(sha=found.get(peeled, found[tag]), target=found[tag], source=tag, url=url)
    raise RefNotFound(f"The repository has no branch or tag named {ref}.")


def refresh(
    clone_key: str,
    remote: Remote,
    tip: Tip,
    *,
    anew: bool = False,
    also: Iterable[str] = (),
    on_progress: Listener | None = None,
    held: HeldLock,
) -> None:
    """Bring the tip into the clone and pin it: that very commit, whatever the remote's ref stands for meanwhile.

    A clone that is not there is made beside and renamed, so a half-made one is never visible; a broken
    one is replaced in the same way. `also` names commits that a clone made anew should have, if it can.
    """
    folder = path_of(clone_key)
    source = _Source(remote.at(tip.url), tip, tuple(also), on_progress)
    with held.inherit():  # no git of an earlier holder is running any more
        _sweep(clone_key)
    if not anew and _has_format(folder, tip.object_format):
        try:
            _fetch_and_pin(folder, source, held)
        except CloneDamaged as error:
            log.warning("Making the clone of %s anew: %s", clone_key, error)
        else:
            return
    _clone(clone_key, source, held)


@contextlib.contextmanager
def open_blobs(clone_key: str) -> Iterator["Blobs"]:
    """What the clone contains. It goes on reading although the clone is renamed meanwhile."""
    folder = path_of(clone_key)
    with _commands.open_process(folder, "cat-file", "--batch-command") as (questions, answers):
        _touch(folder)
        yield Blobs(questions, answers)


def pin_of(commit: str) -> str:
    """The git name of a commit that is there and pinned, with its tree."""
    return f"{_PIN}/{commit}^{{tree}}"


def discard(clone_key: str, *, held: HeldLock) -> Path | None:
    """Rename the clone into the trash, which is instant; `empty` removes it, without the lock."""
    folder = path_of(clone_key)
    held.check()
    trash = _aside("trash")
    try:
        folder.rename(trash)
    except FileNotFoundError:
        return None
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
    return trash


def empty(trash: Path) -> None:
    shutil.rmtree(trash, ignore_errors=True)


def keys_on_disk() -> list[str]:
    """The key of every clone that is there, whether or not anybody knows it."""
    owners = [path for path in _folders(_root()) if not path.name.startswith(".")]
    keys = [f"{owner.name}/{clone.name}" for owner in owners for clone in _folders(owner)]
    return [key for key in keys if is_clone_key(key)]


def leftovers(older_than: float) -> list[Path]:
    """What killed workers left in the trash and among the drafts, untouched for `older_than` seconds."""
    long_ago = time.time() - older_than
    found = [*_folders(_root() / ".trash"), *_folders(_root() / ".drafts")]
    return [path for path in found if path.stat().st_mtime < long_ago]


def usage(clone_key: str) -> Usage:
    """How much room the clone takes, and when it was used last. No bytes: there is no such clone."""
    folder, size = path_of(clone_key), 0
    with contextlib.suppress(FileNotFoundError):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):  # a fetch removes its temporary files
                size += path.lstat().st_blocks * 512
        return Usage(clone_key, size, folder.stat().st_mtime)
    return Usage(clone_key, 0, time.time())


def pins(clone_key: str) -> set[str]:
    return set(
        _commands.read(path_of(clone_key), "for-each-ref", "--format=%(refname:lstrip=3)", _PIN).decode().split()
    )


def pinned_since(clone_key: str, moment: float) -> set[str]:
    """The commits that were pinned later than this, in seconds since 1970. Git packs older pins into one file."""
    found = set()
    for path in (path_of(clone_key) / _PIN).glob("*"):
        with contextlib.suppress(FileNotFoundError):  # unpinned or packed meanwhile
            if path.stat().st_mtime > moment:
                found.add(path.name)
    return found


def unpin(clone_key: str, commits: Iterable[str], *, held: HeldLock) -> None:
    orders = "".join(f"delete {_PIN}/{commit}\n" for commit in commits)
    _commands.write(path_of(clone_key), "update-ref", "--stdin", stdin=orders.encode(), held=held)


def count_packs(clone_key: str) -> int:
    return len(list(path_of(clone_key).glob("objects/pack/*.pack")))


def pack(clone_key: str, *, held: HeldLock) -> None:
    """Put all that is pinned into one pack and drop the rest. What reads a pinned commit meanwhile goes on."""
    folder = path_of(clone_key)
    with held.inherit():
        _sweep(clone_key)
    _commands.write(folder, "pack-refs", "--all", "--prune", held=held)
    _commands.write(folder, "repack", "-a", "-d", "--quiet", held=held)
    _commands.write(folder, "prune", "--expire=now", held=held)


def _folders(parent: Path) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(path for path in parent.iterdir() if path.is_dir())
    return []


def _aside(purpose: str, name: str = "") -> Path:
    """A name on the same volume that no clone key can have."""
    parent = _root() / f".{purpose}"
    parent.mkdir(parents=True, exist_ok=True)
    return parent / f"{name}{uuid.uuid4().hex}"


def _root() -> Path:
    return Path(settings.REPOS_BASE_PATH)


@dataclass(frozen=True, slots=True)
class _Source:
    """What to fetch, and from where."""

    remote: Remote
    tip: Tip
    also: tuple[str, ...]
    on_progress: Listener | None


def _draft_prefix(clone_key: str) -> str:
    return hashlib.sha256(clone_key.encode()).hexdigest()[:32] + "-"


def _clone(clone_key: str, source: _Source, held: HeldLock) -> None:
    draft = _aside("drafts", _draft_prefix(clone_key))
    try:
        _commands.create(draft, source.tip.object_format, held=held)
        _fetch_and_pin(draft, source, held)
        for other in source.also:
            _fetch_also(draft, source.remote, other, held)
        _swap(draft, path_of(clone_key), held)
    finally:
        empty(draft)


def _has_format(folder: Path, object_format: str) -> bool:
    """A host may change a repository's hash; a clone cannot."""
    with contextlib.suppress(OSError):
        return (b"sha256" in (folder / "config").read_bytes()) == (object_format == "sha256")
    return False


def _fetch_also(draft: Path, remote: Remote, commit: str, held: HeldLock) -> None:
    """The commit of another ref on this clone. If the host does not give it, that ref's next look repairs it."""
    try:
        _commands.fetch(draft, remote, f"{commit}:{_PIN}/{commit}", held=held)
    except GitError as error:
        log.info("The new clone of %s lacks %s: %s", remote.url, commit, error)


def _swap(draft: Path, folder: Path, held: HeldLock) -> None:
    held.check()
    folder.parent.mkdir(parents=True, exist_ok=True)
    old = _aside("trash")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(old)
    draft.rename(folder)
    empty(old)


def _fetch_and_pin(folder: Path, source: _Source, held: HeldLock) -> None:
    """Fetch the commit by its own name into its pin: no ref needs to be looked up or renamed afterwards."""
    refspec = f"{source.tip.target}:{_PIN}/{source.tip.sha}"
    _commands.fetch(folder, source.remote, refspec, on_progress=source.on_progress, held=held)
    if source.tip.target != source.tip.sha:
        _check_tag(folder, source.tip)
    _touch(folder)


def _check_tag(folder: Path, tip: Tip) -> None:
    """That a tag stands for this commit is only the host's word until the tag is here."""
    commit = _commands.read(folder, "rev-parse", "--verify", f"{_PIN}/{tip.sha}^{{commit}}").decode().strip()
    if commit != tip.sha:
        raise CloneDamaged(f"The tag {tip.branch} does not stand for the commit that the host named.")


def _touch(folder: Path) -> None:
    """Note that the clone was used now: over the quota, the one that was not used for longest goes first."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def _sweep(clone_key: str) -> None:
    """Remove what a killed git left, at once and not by age: none of ours is running any more."""
    folder = path_of(clone_key)
    for pattern in ("*.lock", "packed-refs.new", "refs/docora/**/*.lock", "objects/pack/tmp_*", "objects/pack/*.keep"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for draft in (_root() / ".drafts").glob(f"{_draft_prefix(clone_key)}*"):
        empty(draft)
