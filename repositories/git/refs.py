"""Names of commits, and of branches and tags by the rules of `git check-ref-format`."""

import re

LONGEST_NAME = 255
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|/\.|\.lock(/|$)")


def object_format(sha: str) -> str:
    return "sha256" if len(sha) == 64 else "sha1"


def check_ref_name(name: str) -> str:
    """The name itself; ValueError if git would not take it, or would take it for an option."""
    if not name or len(name) > LONGEST_NAME:
        raise ValueError(f"a branch or tag has 1 to {LONGEST_NAME} characters")
    if _FORBIDDEN.search(name) or name[0] in "-./" or name[-1] in "./" or name == "@":
        raise ValueError("this cannot be the name of a branch or tag")
    return name
