"""Which repository a URL names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from repositories.errors import InvalidUrl
from repositories.git.urls import RemoteUrl, is_clone_key


@pytest.fixture(autouse=True)
def _hosts(settings: Settings) -> None:
    settings.GIT_HOSTS = ("github.com", "gitlab.com", "git.example.com:8443", "127.0.0.1:9000")


@pytest.mark.parametrize(
    "spelling",
    [
        "https://github.com/Owner/Repo",
        "https://github.com/Owner/Repo.git",
        "https://github.com/Owner/Repo/",
        "https://GitHub.com/Owner/Repo.git/",
        "https://www.github.com:443/Owner/Repo",
        "  https://github.com/Owner/Repo\n",
    ],
)
def test_spellings_of_one_repository_have_one_form(spelling: str) -> None:
    assert str(RemoteUrl.parse(spelling)) == "https://github.com/Owner/Repo"


def test_github_does_not_tell_cases_apart_and_other_hosts_do() -> None:
    def key(url: str) -> str:
        return RemoteUrl.parse(url).clone_key

    assert key("https://github.com/Owner/Repo") == key("https://github.com/owner/repo") == "owner/repo"
    assert key("https://gitlab.com/Owner/Repo") != key("https://gitlab.com/owner/repo")


@pytest.mark.parametrize("name", ["next.js", "a", "under_score", "x.y.z", "da-sh"])
def test_names_with_dots_and_dashes_are_names(name: str) -> None:
    remote = RemoteUrl.parse(f"https://github.com/vercel/{name}")
    assert (remote.owner, remote.name) == ("vercel", name)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "empty"),
        ("https://github.com/owner", "https://github.com/owner/name"),
        ("https://github.com/owner/name/tree/main", "https://github.com/owner/name"),
        ("https://github.com/owner/..", "does not name"),
        ("https://github.com/../name", "does not name"),
        ("https://user:secret@github.com/owner/name", "credentials"),
        ("https://ghp_secret@github.com/owner/name", "credentials"),
        ("https://github.com/owner/name?tab=readme", "query"),
        ("https://github.com/owner/name#readme", "query"),
        ("https://evil.example/owner/name", "not allowed"),
        ("https://github.com.evil.example/owner/name", "not allowed"),
        ("https://github.com:8443/owner/name", "not allowed"),
        ("git@github.com:owner/name.git", "https://host/owner/name"),
        ("ssh://git@github.com/owner/name", "https://host/owner/name"),
        ("file:///etc/passwd", "https://host/owner/name"),
        ("ext::sh -c id", "spaces"),
        ("ext::id", "https://host/owner/name"),
        ("--upload-pack=id", "https://host/owner/name"),
        ("https://github.com/--upload-pack=id/name", "does not name"),
        ("https://[::1", "malformed"),
        ("https://github.com:99999/owner/name", "malformed"),
        ("https://github.com/owner/na\x00me", "control"),
    ],
)
def test_what_names_no_repository_is_refused_without_repeating_secrets(url: str, complaint: str) -> None:
    with pytest.raises(InvalidUrl, match=complaint) as raised:
        RemoteUrl.parse(url)
    assert "secret" not in str(raised.value)


def test_no_clone_lies_inside_another_one() -> None:
    outer = RemoteUrl.parse("https://gitlab.com/group").clone_key
    inner = RemoteUrl.parse("https://gitlab.com/group/refs").clone_key
    assert not inner.startswith(f"{outer}/")


def test_no_path_has_the_key_of_a_longer_one() -> None:
    """Else its owner would be shown what somebody else's long path leads to."""
    key = RemoteUrl.parse("https://gitlab.com/" + "a" * 250).clone_key
    _, _, segment = key.partition("/")
    assert RemoteUrl.parse(f"https://gitlab.com/{segment}").clone_key != key
    assert is_clone_key(key)


_SEGMENT = st.text(
    st.characters(codec="ascii", exclude_characters="/?#@\\ ", min_codepoint=33), min_size=1, max_size=60
)


@given(st.lists(_SEGMENT, min_size=1, max_size=8), st.lists(_SEGMENT, min_size=1, max_size=8))
def test_different_repositories_have_different_keys_that_stay_below_the_root(one: list[str], other: list[str]) -> None:
    keys = {}
    for segments in (one, other):
        try:
            remote = RemoteUrl.parse("https://gitlab.com/" + "/".join(segments))
        except InvalidUrl:
            continue
        keys[str(remote)] = remote.clone_key
        assert is_clone_key(remote.clone_key)
        assert remote.clone_key.count("/") == 1
        assert all(len(part.encode()) <= 255 and part not in {".", ".."} for part in remote.clone_key.split("/"))
    assert len(set(keys.values())) == len(keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "..",
        "../..",
        "owner/..",
        "owner/.",
        "../name",
        "/etc/passwd",
        "owner/name/more",
        ".trash/x",
        "owner/name\n",
        "@/x",
    ],
)
def test_what_no_url_has_is_no_clone_key(text: str) -> None:
    assert not is_clone_key(text)
