"""`.docoraignore` in the root of a repository: what its owners do not want to be told, in gitignore's syntax.

The rules of a commit are read at that commit. An ignored path counts as absent: an app that has
the file gets a delete.
"""

import logging

import pathspec

from repositories.git.blobs import Blobs

log = logging.getLogger("docora.snapshots")

RULES = b".docoraignore"
LONGEST = 1 << 16
# Each further star of a name multiplies the time that a hostile pattern can take for one path.
_MOST_STARS = 3


class Rules:
    def __init__(self, text: str = "") -> None:
        lines = [line for line in text.splitlines() if not _takes_for_ever(line)]
        self._spec = pathspec.GitIgnoreSpec.from_lines(lines) if any(map(str.strip, lines)) else None

    def hide(self, path: bytes) -> bool:
        return self._spec is not None and self._spec.match_file(path.decode(errors="surrogateescape"))


def are_the_same(old: str, new: str, blobs: Blobs) -> bool:
    """The rules of two commits."""
    return _content(old, blobs) == _content(new, blobs)


def rules_at(commit: str, blobs: Blobs) -> Rules:
    try:
        return Rules(_content(commit, blobs).decode(errors="surrogateescape"))
    except ValueError as error:
        log.warning("The %s at %s is not honoured: %s", RULES.decode(), commit, error)
        return Rules()


def _content(commit: str, blobs: Blobs) -> bytes:
    return blobs.read_small(f"{commit}:{RULES.decode()}", LONGEST) or b""


def _takes_for_ever(pattern: str) -> bool:
    return any(name.replace("**", "*").count("*") > _MOST_STARS for name in pattern.split("/"))
