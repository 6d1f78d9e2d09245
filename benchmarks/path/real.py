"""Real history: a first sync of each given repository some commits ago, and a replay of the commits since."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.path import reference
from benchmarks.path.bench import Bench, Sizes, Synced
from benchmarks.path.changes import PAUSE, ask_and_fetch
from benchmarks.path.remote import git
from benchmarks.path.report import Goal, Outcome
from benchmarks.path.rows import Row
from benchmarks.path.stage import NotDelivered, Wrong

# The cost of a first sync that does not depend on its files (a clone, two jobs) is more than that of so few files.
_FEW_FILES = 1_000


def rows_for(folder: Path, sizes: Sizes) -> Iterator[tuple[str, Row]]:
    """Two rows for every repository in the folder; they are read, never written."""
    for source in sorted(path for path in folder.iterdir() if path.is_dir()):
        commits = git("rev-list", "--first-parent", f"-n{sizes.replayed + 1}", "HEAD", folder=source).decode().split()
        name = source.name.removesuffix(".git")
        prepared = partial(_prepared, source=source, oldest=commits[-1])
        files = git("ls-tree", "-r", "-z", "--name-only", commits[-1], folder=source).count(b"\0")
        goal = Goal(limit=1.5) if files >= _FEW_FILES else None
        yield (
            f"real-{name}-first",
            Row(f"first sync, {name}, {files:,} files", goal, partial(_first, name=name, template=prepared)),
        )
        yield (
            f"real-{name}-replay",
            Row(
                f"the last {len(commits) - 1} commits, {name}",
                Goal(limit=3),
                partial(_replay, name=name, template=prepared, commits=commits[-2::-1]),
            ),
        )


def _prepared(bench: Bench, *, source: Path, oldest: str) -> Path:
    """A repository that borrows the objects of another one, with its branch at an older commit."""
    path = bench.templates / f"real-{source.name}"
    if not path.exists():
        objects = (source / git("rev-parse", "--git-path", "objects", folder=source).decode().strip()).resolve()
        git("init", "--quiet", "--bare", "--initial-branch=main", str(path))
        (path / "objects" / "info" / "alternates").write_text(f"{objects}\n")
        git("update-ref", "refs/heads/main", oldest, folder=path)
    return path


def _synced(bench: Bench, name: str, template: "partial[Path]") -> Synced:
    return bench.synced(f"real-{name}", partial(template, bench))


def _first(bench: Bench, *, name: str, template: "partial[Path]") -> Outcome:
    return _synced(bench, name, template).first_sync


def _replay(bench: Bench, *, name: str, template: "partial[Path]", commits: list[str]) -> Outcome:
    synced = _synced(bench, name, template)
    try:
        found = [turn for commit in commits if (turn := _replay_once(synced, commit, bench.patience))]
    except NotDelivered:
        bench.close()
        raise
    if synced.stage.files(synced.watch) != synced.clone.read_and_hash()[1]:
        raise Wrong("the receiver does not have what git has")
    ours, bare, files = zip(*found, strict=True)
    detail = f"{sum(files)} files in {len(files)} commits; slowest {max(ours):.2f} s; bare: ls-remote, fetch and POST"
    return Outcome(ours=median(ours), reference=median(bare), detail=detail)


def _replay_once(synced: Synced, commit: str, patience: float) -> tuple[float, float, int] | None:
    """None for a commit that changes no content."""
    stage, watch = synced.stage, synced.watch
    changed = _changed(synced, commit)
    synced.remote.point_to(commit)
    if not changed:
        return None
    time.sleep(PAUSE)
    begun = stage.look(watch)
    told = stage.told(watch, commit, paths=len(changed), seconds=patience)
    stage.wait_until_synced(watch, commit)
    bare = ask_and_fetch(synced.clone, commit)
    bodies = reference.posts(synced.clone, stage.receiver, commit, chosen=changed)
    synced.known = commit
    return told.last_at - begun, bare + reference.send_all(bodies), len(changed)


def _changed(synced: Synced, commit: str) -> frozenset[str]:
    """Paths whose content differs from what the app knows; submodules have none."""
    words = ("diff-tree", "-r", "-z", "--raw", "--no-renames", synced.known, commit)
    parts = git(*words, folder=synced.remote.path).decode(errors="surrogateescape").split("\0")[:-1]
    entries = zip((part.split() for part in parts[::2]), parts[1::2], strict=True)
    return frozenset(
        path
        for (old_mode, new_mode, old, new, _), path in entries
        if old != new and "160000" not in {old_mode.lstrip(":"), new_mode}
    )
