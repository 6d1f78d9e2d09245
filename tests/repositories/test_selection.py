"""Globs and names: what a watch may ask for, and what it then gets."""

import subprocess
import time

import pytest

from repositories.git.refs import check_ref_name
from repositories.selection import Selection, check_glob


@pytest.mark.parametrize(
    ("glob", "taken", "left"),
    [
        ("*.md", ["a.md", "x/y/a.md"], ["a.mdx", "a.md/b"]),
        ("docs/*.md", ["docs/a.md"], ["docs/x/a.md", "a.md", "x/docs/a.md"]),
        ("docs/**/*.md", ["docs/a.md", "docs/x/y/a.md"], ["docs/a.txt", "doc/a.md"]),
        ("**/test/*", ["test/a", "x/y/test/a"], ["test/a/b", "x/latest/a"]),
        ("docs/", ["docs/a", "docs/x/y"], ["docs", "x/docs/a"]),
        ("docs/**", ["docs/a", "docs/x/y"], ["src/docs/a"]),
        ("a?[0-9].txt", ["ab1.txt", "x/ab1.txt"], ["abc.txt", "a1.txt"]),
        ("**", ["a", "a/b"], []),
        ("A.md", ["A.md"], ["a.md"]),
    ],
)
def test_a_glob_takes_what_its_description_says(glob: str, taken: list[str], left: list[str]) -> None:
    selection = Selection(include=(glob,))
    assert [path for path in taken + left if selection.takes_path(path)] == taken


def test_exclude_wins_over_include_and_size_over_both() -> None:
    selection = Selection(include=("docs/",), exclude=("*.tmp",), max_file_size=10)
    assert selection.takes("docs/a", 10)
    assert not selection.takes("docs/a", 11)
    assert not selection.takes("docs/a.tmp", 1)
    assert not selection.takes("b", 1)


def test_many_stars_take_no_more_time_than_they_should() -> None:
    started = time.monotonic()
    assert not Selection(include=("*a" * 200 + "b",)).takes_path("a" * 4000)
    assert not Selection(include=("**/x/" * 50 + "y",)).takes_path("x/" * 500 + "z")
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("glob", ["", "/a", "a//b", "../a", "a/./b", "a\nb", "x" * 501])
def test_a_glob_that_can_match_nothing_is_refused(glob: str) -> None:
    with pytest.raises(ValueError, match="a glob"):
        check_glob(glob)


NAMES = [
    "main", "feature/x", "v1.0", "a@b", "é", "a.b", "a-", "@", "-x", "a..b", "a b", "a~b", "a^b", "a:b", "a?b", "a*b",
    "a[b", "a\\b", "a\x01b", "a\x7fb", "/a", "a/", "a//b", "a.", ".a", "a/.b", "a.lock", "a.lock/b", "a@{b", "@{",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_ref_name_is_taken_exactly_if_git_takes_it_as_a_branch(name: str) -> None:
    git = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, check=False)
    try:
        accepted = check_ref_name(name) == name
    except ValueError:
        accepted = False
    assert accepted == (git.returncode == 0 and name != "@")


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b"])
def test_a_name_that_git_could_not_even_be_asked_about_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="branch or tag"):
        check_ref_name(name)
