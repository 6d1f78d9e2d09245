"""The git host of the cast: real git clones from it, and it fails as it is told to."""

import gzip
import http.client
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from docora.demo.bare import Content, executable, submodule, symlink
from docora.demo.githost import GitFault, GitHost, HostedRepository


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GitHost]:
    with GitHost(tmp_path / "host") as host:
        yield host


@pytest.fixture
def repository(host: GitHost) -> HostedRepository:
    repository = host.create("ada/notes")
    repository.commit({"README.md": "# Notes\n", "src/main.py": "print()\n"})
    return repository


def git(*arguments: str | Path, seconds: float = 30) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_CONFIG_GLOBAL": os.devnull}
    command = ["git", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=seconds)


def with_token(url: str, token: str) -> str:
    return url.replace("http://", f"http://x-access-token:{token}@")


class TestGitHost:
    def test_git_clones_what_was_committed(self, repository: HostedRepository, tmp_path: Path) -> None:
        assert git("clone", repository.url, tmp_path / "clone").returncode == 0
        assert (tmp_path / "clone" / "README.md").read_text() == "# Notes\n"
        assert git("-C", tmp_path / "clone", "rev-parse", "HEAD").stdout.strip() == repository.tip()

    def test_names_are_case_insensitive_and_may_end_in_git(self, repository: HostedRepository) -> None:
        for url in (repository.url + ".git", repository.url.replace("ada/notes", "Ada/Notes")):
            assert str(repository.tip()) in git("ls-remote", url).stdout

    def test_an_empty_repository_has_no_refs(self, host: GitHost) -> None:
        listed = git("ls-remote", "--symref", host.create("ada/empty").url, "HEAD")
        assert (listed.returncode, listed.stdout) == (0, "")

    def test_a_commit_may_edit_rename_and_delete(self, repository: HostedRepository) -> None:
        repository.commit({"README.md": "# More\n", "docs/index.md": ""})
        repository.rename("src", "lib")
        repository.commit({"docs/index.md": None})
        assert repository.files() == {"README.md": b"# More\n", "lib/main.py": b"print()\n"}

    def test_a_commit_may_hold_what_no_file_system_does(self, repository: HostedRepository) -> None:
        name = b'\xff\n"caf\xe9"'
        linked = submodule("ab" * 20)
        changes: dict[bytes, Content] = {name: b"\0", b"run": executable(b"#!"), b"link": symlink(b"run")}
        repository.commit(changes | {b"lib": linked})
        assert repository.files()[name.decode(errors="surrogateescape")] == b"\0"
        modes = {line[:6] for line in repository.git("ls-tree", "-r", "HEAD").decode().splitlines()}
        assert modes == {"100644", "100755", "120000", "160000"}

    def test_a_rewrite_leaves_the_old_tip_behind(self, repository: HostedRepository) -> None:
        first = repository.tip()
        second = repository.commit({"a": "1"})
        third = repository.rewrite({"a": "2"})
        assert repository.tip() == third
        assert repository.git("rev-list", third).decode().split() == [third, first]
        assert second != third

    def test_a_root_commit_can_be_rewritten(self, repository: HostedRepository) -> None:
        assert repository.files(repository.rewrite({"only": "this"})) == {"only": b"this"}

    def test_the_default_branch_can_change(self, repository: HostedRepository) -> None:
        repository.point("trunk", repository.tip() or "")
        repository.set_default_branch("trunk")
        repository.delete_branch("main")
        assert "ref: refs/heads/trunk\tHEAD" in git("ls-remote", "--symref", repository.url, "HEAD").stdout

    def test_a_large_push_arrives(self, repository: HostedRepository, tmp_path: Path) -> None:
        """Git sends what is larger than its buffer in chunks."""
        clone = tmp_path / "clone"
        git("clone", repository.url, clone)
        (clone / "large").write_bytes(os.urandom(300_000))
        git("-C", clone, "add", "large")
        git("-C", clone, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "Add")
        pushed = git("-C", clone, "-c", "http.postBuffer=65536", "push", "origin", "HEAD")
        assert pushed.returncode == 0, pushed.stderr
        assert repository.files()["large"] == (clone / "large").read_bytes()

    @pytest.mark.parametrize("way", ["plain", "gzip", "chunked", "expect"])
    def test_a_request_body_may_come_in_any_way(self, repository: HostedRepository, way: str) -> None:
        status, answer = list_refs(repository, way)
        assert status == 200
        assert (repository.tip() or "").encode() in answer

    def test_a_connection_is_kept_for_further_requests(self, repository: HostedRepository) -> None:
        connection = http.client.HTTPConnection(repository.url.split("/")[2])
        for _ in range(3):
            connection.request("GET", "/ada/notes/info/refs?service=git-upload-pack")
            response = connection.getresponse()
            assert (response.status, response.will_close) == (200, False)
            response.read()
        connection.close()

    def test_requests_are_counted_by_kind(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        git("ls-remote", repository.url)
        git("clone", repository.url, tmp_path / "clone")
        counts = {kind: host.count(repository, kind) for kind in ("advertise", "ls-refs", "fetch")}
        assert counts == {"advertise": 2, "ls-refs": 2, "fetch": 1}

    def test_many_clones_at_once(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        with ThreadPoolExecutor(8) as pool:
            clones = list(pool.map(lambda number: git("clone", repository.url, tmp_path / str(number)), range(8)))
        assert [clone.returncode for clone in clones] == [0] * 8
        assert host.count(repository, "fetch") == 8

    def test_a_private_repository_opens_for_its_tokens_alone(self, host: GitHost) -> None:
        secret = host.create("ada/secret", private_to={"token-a"})
        sha = secret.commit({"a": "1"})
        host.add_token("token-b")
        assert sha in git("ls-remote", with_token(secret.url, "token-a")).stdout
        assert "not found" in git("ls-remote", with_token(secret.url, "token-b")).stderr
        assert "Authentication failed" in git("ls-remote", with_token(secret.url, "token-c")).stderr
        assert "could not read Username" in git("ls-remote", secret.url).stderr

    def test_a_repository_that_is_not_there_looks_like_a_private_one(self, host: GitHost) -> None:
        nothing = f"http://{host.address}/ada/nothing"
        host.add_token("token-a")
        assert "could not read Username" in git("ls-remote", nothing).stderr
        assert "not found" in git("ls-remote", with_token(nothing, "token-a")).stderr

    def test_a_token_can_lose_and_regain_access(self, host: GitHost) -> None:
        secret = host.create("ada/secret", private_to={"token-a"})
        secret.commit({"a": "1"})
        url = with_token(secret.url, "token-a")
        host.revoke(secret, "token-a")
        assert "not found" in git("ls-remote", url).stderr
        host.grant(secret, "token-a")
        assert git("ls-remote", url).returncode == 0
        host.expire_token("token-a")
        assert "Authentication failed" in git("ls-remote", url).stderr

    @pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
    def test_it_fails_as_often_as_it_is_told(self, host: GitHost, repository: HostedRepository, status: int) -> None:
        host.faults.put(GitFault(repository=repository, status=status, retry_after=7, times=1))
        connection = http.client.HTTPConnection(host.address)
        seen = []
        for _ in range(2):
            connection.request("GET", "/ada/notes/info/refs?service=git-upload-pack")
            response = connection.getresponse()
            seen.append((response.status, response.headers["Retry-After"]))
            response.read()
        connection.close()
        assert seen == [(status, "7"), (200, None)]

    def test_a_fault_of_one_repository_spares_the_others(self, host: GitHost, repository: HostedRepository) -> None:
        other = host.create("ada/other")
        with host.faults.put(GitFault(repository=other, status=500)):
            assert git("ls-remote", other.url).returncode != 0
            assert git("ls-remote", repository.url).returncode == 0
        assert git("ls-remote", other.url).returncode == 0

    def test_a_moved_repository_redirects(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        moved = host.create("bob/notes")
        moved.commit({"moved": "yes"})
        host.faults.put(GitFault(repository=repository, redirect_to=moved))
        assert git("clone", repository.url, tmp_path / "clone").returncode == 0
        assert (tmp_path / "clone" / "moved").exists()

    def test_a_hanging_answer_comes_when_the_fault_is_lifted(self, host: GitHost, repository: HostedRepository) -> None:
        with ThreadPoolExecutor(1) as pool:
            with host.faults.put(GitFault(hang=True)):
                asked = pool.submit(git, "ls-remote", repository.url)
                time.sleep(0.5)
                assert not asked.done()
            assert asked.result().returncode == 0

    @pytest.mark.parametrize("large", [True, False])
    def test_a_pack_can_break_off(
        self, host: GitHost, repository: HostedRepository, tmp_path: Path, large: bool
    ) -> None:
        repository.commit({"large": os.urandom(500_000 if large else 1)})
        host.faults.put(GitFault(drop_after=100_000, times=1))
        assert git("clone", repository.url, tmp_path / "first").returncode != 0
        assert git("clone", repository.url, tmp_path / "second").returncode == 0

    def test_a_pack_can_stop_half_way(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        repository.commit({"large": os.urandom(500_000)})
        with ThreadPoolExecutor(1) as pool:
            with host.faults.put(GitFault(hang_after=100_000)):
                cloned = pool.submit(git, "clone", repository.url, tmp_path / "clone")
                time.sleep(0.5)
                assert not cloned.done()
            assert cloned.result().returncode == 0

    def test_a_pack_can_be_slow(self, host: GitHost, repository: HostedRepository, tmp_path: Path) -> None:
        repository.commit({"large": os.urandom(100_000)})
        host.faults.put(GitFault(bytes_per_second=100_000))
        started = time.monotonic()
        assert git("clone", repository.url, tmp_path / "clone").returncode == 0
        assert time.monotonic() - started > 0.8

    def test_closing_ends_whoever_hangs(self, tmp_path: Path) -> None:
        with ThreadPoolExecutor(1) as pool, GitHost(tmp_path / "host") as host:
            repository = host.create("ada/notes")
            repository.commit({"large": os.urandom(2_000_000)})
            host.faults.put(GitFault(hang_after=1000))
            cloned = pool.submit(git, "clone", repository.url, tmp_path / "clone")
            while not host.count(repository, "fetch"):
                time.sleep(0.01)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("git host")]
        cloned.result(timeout=10)


def list_refs(repository: HostedRepository, way: str) -> tuple[int, bytes]:
    """Ask for the refs in protocol 2 with a body that is framed or packed in the given way."""
    body = b"0014command=ls-refs\n00010000"
    headers = {"Content-Type": "application/x-git-upload-pack-request", "Git-Protocol": "version=2"}
    if way == "gzip":
        headers["Content-Encoding"], body = "gzip", gzip.compress(body)
    if way == "expect":
        headers["Expect"] = "100-continue"
    connection = http.client.HTTPConnection(repository.url.split("/")[2])
    sent = iter([body[:7], body[7:]]) if way == "chunked" else body
    connection.request("POST", "/ada/notes/git-upload-pack", sent, headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    return response.status, answer
