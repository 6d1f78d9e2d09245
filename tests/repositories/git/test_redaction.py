"""Whatever git prints, no error says a token."""

from pathlib import Path

import pytest

from repositories.errors import GitError
from repositories.git._process import Command, run
from repositories.git.clones import Remote
from repositories.git.urls import RemoteUrl

TOKEN = "ghp_0123456789abcdef0123456789abcdef0123"
REMOTE = Remote(url=RemoteUrl.parse("https://github.com/acme/handbook"), token=TOKEN)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"remote: the token {TOKEN} has expired", "remote: the token [token] has expired"),
        ("=> Send header: Authorization: Basic eDpnaHA= ok", "=> Send header: [authorization] ok"),
        ("fatal: https://x:secret@github.com/acme: no", "fatal: https://github.com/acme: no"),
    ],
    ids=["token", "header", "URL"],
)
def test_tokens_headers_and_urls_with_credentials_are_taken_out(said: str, shown: str) -> None:
    assert REMOTE.redact(said) == shown


def test_the_error_of_a_git_that_prints_the_token_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\necho 'fatal: {TOKEN} is not what I expected' >&2\nexit 128\n")
    git.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(Remote, "environment", lambda self: {})
    with pytest.raises(GitError, match=r"^\[token\] is not what I expected$"):
        run(Command(["fetch"], folder=tmp_path, timeout=60, remote=REMOTE))
