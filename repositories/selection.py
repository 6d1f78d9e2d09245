"""Which files of a repository a watch wants: globs to include, globs to exclude, a size.

A glob names whole paths: `*`, `?` and `[…]` stay inside one folder, `**` is any number of folders. One
without a slash means the file's name, in any folder; one that ends in a slash means all below it.
Matching takes time in proportion to path and glob, however many stars a glob has.
"""

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LONGEST_GLOB = 500
MOST_GLOBS = 100
_ANY_DEPTH = "**"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    max_file_size: int | None = None

    def takes(self, path: str, size: int) -> bool:
        if self.max_file_size is not None and size > self.max_file_size:
            return False
        return self.takes_path(path)

    def is_like(self, other: "Selection") -> bool:
        """Whether both choose the same files: the order of globs does not matter."""
        return (set(self.include), set(self.exclude), self.max_file_size) == (
            set(other.include),
            set(other.exclude),
            other.max_file_size,
        )

    @property
    def as_json(self) -> dict[str, Any]:
        """Empty for everything."""
        found = {"include": [*self.include], "exclude": [*self.exclude], "max_file_size": self.max_file_size}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> "Selection":
        return cls(
            include=tuple(found.get("include", ())),
            exclude=tuple(found.get("exclude", ())),
            max_file_size=found.get("max_file_size"),
        )

    def takes_path(self, path: str) -> bool:
        return (not self.include or _any(self.include, path)) and not _any(self.exclude, path)


EVERYTHING = Selection()


def check_glob(text: str) -> str:
    """The glob itself; ValueError if it can match nothing."""
    if not text or len(text) > LONGEST_GLOB:
        raise ValueError(f"a glob has 1 to {LONGEST_GLOB} characters")
    if any(ord(character) < 32 for character in text):
        raise ValueError("a glob has no control characters")
    if text.startswith("/") or any(part in {"", ".", ".."} for part in text.removesuffix("/").split("/")):
        raise ValueError("a glob is a path below the repository's root, such as docs/**/*.md")
    return text


def _any(globs: Iterable[str], path: str) -> bool:
    parts = path.split("/")
    return any(_matches(glob, parts) for glob in globs)


def _matches(glob: str, parts: list[str]) -> bool:
    """Walks the glob folder by folder and keeps every depth of the path that it may have reached."""
    reached = {0}
    for part in _parts(glob):
        if part is None:
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {depth + 1 for depth in reached if depth < len(parts) and part.match(parts[depth])}
        if not reached:
            return False
    return len(parts) in reached


@lru_cache(maxsize=4096)
def _parts(glob: str) -> tuple[re.Pattern[str] | None, ...]:
    """One pattern for each folder of the glob; None for any number of them."""
    if "/" not in glob:
        glob = f"{_ANY_DEPTH}/{glob}"
    if glob.endswith("/"):
        glob += f"{_ANY_DEPTH}/*"
    return tuple(None if part == _ANY_DEPTH else re.compile(fnmatch.translate(part)) for part in glob.split("/"))
