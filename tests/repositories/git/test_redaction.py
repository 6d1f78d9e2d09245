"""Whatever git prints, no error says a token."""

from pathlib import Path

import pytest

from repositories.errors import GitError
from repositories.git._process import Command, run
from repositories.git.clones import Remote
from repositories.git.urls import RemoteUrl

# Of no form that the general patterns know: only the remote itself can hide it.
TOKEN = "s3cret of a host like any other"
REMOTE = Remote(url=RemoteUrl.parse("https://github.com/acme/handbook"), token=TOKEN)


def test_a_remote_takes_its_own_token_out_of_what_git_said() -> None:
    assert REMOTE.redact(f"remote: {TOKEN} has expired") == "remote: [hidden] has expired"


def test_the_error_of_a_git_that_prints_the_token_does_not_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = tmp_path / "git"
    git.write_text(f"#!/bin/sh\necho 'fatal: {TOKEN} is not what I expected' >&2\nexit 128\n")
    git.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(Remote, "environment", lambda self: {})
    with pytest.raises(GitError, match=r"^\[hidden\] is not what I expected$"):
        run(Command(["fetch"], folder=tmp_path, timeout=60, remote=REMOTE))
