"""Reading files over the API: lists of one commit, exact bytes, and nothing for those who may not."""

import hashlib
import shutil
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from docora.demo.githost import GitHost, HostedRepository
from docora.limits import seats
from docora.short_requests import SHORT
from repositories import watches
from repositories.models import Repository, Watch
from snapshots.models import FileVersion
from tests.support.api import Api
from tests.support.worker import Work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def watched(repository_id: str) -> str:
    """The path of a repository whose files are known."""
    return f"/api/repositories/{repository_id}"


def pages(api: Api, path: str, limit: int) -> Iterator[Any]:
    cursor = ""
    while cursor is not None:
        page = api.get(f"{path}?limit={limit}&cursor={cursor}").json()
        yield page
        cursor = page["next_cursor"]


def body(answer: Any) -> bytes:
    return b"".join(answer.streaming_content)


def look_again(work: Work) -> None:
    watches.request_snapshot(Repository.objects.get())
    work()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_list_names_every_file_of_the_commit(alice_api: Api, watched: str, remote: HostedRepository) -> None:
    found = list(pages(alice_api, f"{watched}/files", 2))
    assert [len(page["files"]) for page in found] == [2, 1]
    assert {page["commit_sha"] for page in found} == {remote.tip()}
    files = {file["path"]: (file["sha"], file["size"]) for page in found for file in page["files"]}
    assert files == {path: (sha256(content), len(content)) for path, content in remote.files().items()}


def test_a_list_stays_with_its_commit_while_new_ones_come(
    alice_api: Api, watched: str, remote: HostedRepository, work: Work
) -> None:
    before, tip = remote.files(), remote.tip()
    reading = pages(alice_api, f"{watched}/files", 1)
    found = [next(reading)]
    remote.commit(dict.fromkeys(before) | {"new.md": "new"})
    look_again(work)
    found += reading
    assert {file["path"] for page in found for file in page["files"]} == set(before)
    assert {page["commit_sha"] for page in found} == {tip}
    assert [file["path"] for page in pages(alice_api, f"{watched}/files", 9) for file in page["files"]] == ["new.md"]


def test_a_place_in_a_forgotten_snapshot_is_gone(
    alice_api: Api, watched: str, remote: HostedRepository, work: Work, settings: Any
) -> None:
    cursor = alice_api.get(f"{watched}/files?limit=1").json()["next_cursor"]
    remote.commit({"new.md": "new"})
    look_again(work)
    settings.HISTORY_DAYS = 0
    answer = alice_api.get(f"{watched}/files?cursor={cursor}")
    assert (answer.status_code, answer.json()["code"]) == (410, "cursor-expired")


@pytest.mark.any_database
def test_the_content_comes_as_an_attachment_with_its_sha_as_etag(
    alice_api: Api, watched: str, remote: HostedRepository
) -> None:
    for path, content in remote.files().items():
        answer = alice_api.get(f"{watched}/files/{path}")
        assert (answer.status_code, body(answer)) == (200, content)
        assert answer["ETag"] == f'"{sha256(content)}"'
        assert answer["Content-Length"] == str(len(content))
        assert answer["Content-Type"] == "application/octet-stream"
        assert answer["X-Content-Type-Options"] == "nosniff"
        assert answer["Content-Disposition"].startswith("attachment")
        assert "sandbox" in answer["Content-Security-Policy"]
        assert answer["X-Docora-Commit-Sha"] == remote.tip()
    assert alice_api.get(f"{watched}/files/not/there").status_code == 404


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("asked", "status", "start", "stop"),
    [
        ("bytes=0-3", 206, 0, 4),
        ("bytes=4-", 206, 4, 11),
        ("bytes=-4", 206, 7, 11),
        ("bytes=-99", 206, 0, 11),
        ("bytes=10-99", 206, 10, 11),
        ("bytes=0-0,2-3", 200, 0, 11),
        ("bytes=5-2", 200, 0, 11),
        ("bytes=-", 200, 0, 11),
        ("lines=1-2", 200, 0, 11),
    ],
)
def test_a_range_is_cut_out_of_the_content(
    alice_api: Api, watched: str, asked: str, status: int, start: int, stop: int
) -> None:
    answer = alice_api.get(f"{watched}/files/README.md", Range=asked)
    assert (answer.status_code, body(answer)) == (status, b"# Handbook\n"[start:stop])
    assert answer.get("Content-Range") == (f"bytes {start}-{stop - 1}/11" if status == 206 else None)


@pytest.mark.any_database
@pytest.mark.parametrize("asked", ["bytes=11-", "bytes=-0", f"bytes={9 * 10**17}-"])
def test_a_range_beyond_the_end_is_416(alice_api: Api, watched: str, asked: str) -> None:
    answer = alice_api.get(f"{watched}/files/README.md", Range=asked)
    assert (answer.status_code, answer["Content-Range"]) == (416, "bytes */11")


@pytest.mark.any_database
def test_what_the_client_has_already_is_not_sent_again(alice_api: Api, watched: str) -> None:
    etag = f'"{sha256(b"# Handbook" + bytes([10]))}"'
    path = f"{watched}/files/README.md"
    assert alice_api.get(path, **{"If-None-Match": etag}).status_code == 304
    assert alice_api.get(path, **{"If-None-Match": '"other"'}).status_code == 200
    assert alice_api.get(path, **{"If-Range": etag, "Range": "bytes=0-1"}).status_code == 206
    assert alice_api.get(path, **{"If-Range": '"other"', "Range": "bytes=0-1"}).status_code == 200


@pytest.mark.any_database
def test_a_large_file_is_streamed_from_its_middle(
    alice_api: Api, watched: str, remote: HostedRepository, work: Work
) -> None:
    content = bytes(range(256)) * 4096
    remote.commit({"large.bin": content})
    look_again(work)
    answer = alice_api.get(f"{watched}/files/large.bin", Range="bytes=500000-600000")
    assert body(answer) == content[500000:600001]


@pytest.mark.any_database
def test_a_large_file_takes_a_seat_until_it_is_sent_because_its_client_may_be_slow(
    alice_api: Api, watched: str, remote: HostedRepository, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit({"large.bin": b"x" * (SHORT + 1)})
    look_again(work)
    monkeypatch.setattr(seats, "_CALLS_OF_ONE_APP", 1)
    reading = alice_api.get(f"{watched}/files/large.bin")
    refused = alice_api.get(f"{watched}/files/large.bin")
    assert (refused.status_code, refused.json()["code"]) == (429, "too-many-at-once")
    assert alice_api.get(f"{watched}/files/README.md").status_code == 200
    reading.close()
    assert body(alice_api.get(f"{watched}/files/large.bin")) == b"x" * (SHORT + 1)


def test_strange_names_are_found_as_they_are_listed(
    alice_api: Api, watched: str, remote: HostedRepository, work: Work
) -> None:
    strange: dict[bytes, bytes] = {
        b"caf\xe9.txt": b"latin",
        b"caf%E8.txt": b"percent",
        "ünï/ö.md".encode(): b"utf-8",
        b"new\nline": b"two lines",
        b'q"uote?#': b"marks",
        b"empty": b"",
    }
    remote.commit(strange)
    look_again(work)
    listed = {file["path"]: file for file in alice_api.get(f"{watched}/files").json()["files"]}
    assert listed["caf%E9.txt"]["path_base64"] == "Y2Fm6S50eHQ="
    assert listed["caf%E8.txt"]["path_base64"] is None
    for path in ("caf%E9.txt", "caf%E8.txt", "ünï/ö.md", "new\nline", 'q"uote?#', "empty"):
        answer = alice_api.get(f"{watched}/files/{quote(path)}")
        assert answer.status_code == 200
        assert sha256(body(answer)) == listed[path]["sha"]
    assert body(alice_api.get(f"{watched}/files/caf%E9.txt")) == b"latin"


def test_files_that_the_options_leave_out_are_neither_listed_nor_read(
    alice_api: Api, remote: HostedRepository, work: Work
) -> None:
    repository_id = alice_api.watch(remote.url, exclude=["*.png"]).json()["repository_id"]
    work()
    path = f"/api/repositories/{repository_id}/files"
    assert {file["path"] for file in alice_api.get(path).json()["files"]} == {"README.md", "docs/start.md"}
    assert alice_api.get(f"{path}/logo.png").status_code == 404


def test_without_the_clone_the_content_is_not_here_now(alice_api: Api, watched: str, settings: Any) -> None:
    shutil.rmtree(settings.REPOS_BASE_PATH)
    answer = alice_api.get(f"{watched}/files/README.md")
    assert (answer.status_code, answer.json()["code"]) == (503, "content-unavailable")
    assert answer["Retry-After"]
    assert not Repository.objects.get().needs_repair


def test_a_token_revoked_at_the_host_stops_reading_at_the_next_proof(
    alice_api: Api, bob_api: Api, git_host: GitHost, work: Work
) -> None:
    private = git_host.create("acme/secret", private_to={"alice-token", "bob-token"})
    private.commit({"plan.md": "secret plan"})
    repository_id = alice_api.watch(private.url, "alice-token").json()["repository_id"]
    bob_api.watch(private.url, "bob-token")
    work()
    doors = [f"/api/repositories/{repository_id}/{door}" for door in ("files", "files/plan.md", "changes")]
    assert [alice_api.get(door).status_code for door in doors] == [200, 200, 200]
    git_host.revoke(private, "alice-token")
    Watch.objects.update(access_proven_at=None)
    for door in doors:
        answer = alice_api.get(door)
        assert (answer.status_code, answer.json()["code"]) == (403, "no-access")
        assert "secret plan" not in answer.content.decode()
    assert [bob_api.get(door).status_code for door in doors] == [200, 200, 200]


def test_a_file_costs_a_handful_of_queries(alice_api: Api, watched: str, django_assert_max_num_queries: Any) -> None:
    assert FileVersion.objects.count() == 3
    with django_assert_max_num_queries(4):
        body(alice_api.get(f"{watched}/files/README.md"))
