"""What an operator sees in a real browser is what the workers, the receiver and the other commands know."""

import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect

from docora.demo.githost import GitHost
from docora.demo.receiver import Receiver
from tests.journeys.test_admin_browser import CHROMIUM, KEY, git_host, hasty, onboard, page, watch
from tests.support.service import Service, wait_until

__all__ = ["git_host", "hasty", "page"]  # fixtures
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs an installed Chromium: apt-get install chromium"),
]


@contextmanager
def without_workers(service: Service) -> Iterator[None]:
    """The workers end, and the supervisor, which would start them again, is held."""
    assert service.process
    redis = service.redis()
    service.process.send_signal(signal.SIGSTOP)
    try:
        for worker in redis.smembers("rq:workers"):
            os.kill(int(redis.hget(worker, "pid") or 0), signal.SIGTERM)
        wait_until(lambda: not redis.smembers("rq:workers"), "the workers have ended")
        yield
    finally:
        service.process.send_signal(signal.SIGCONT)


def checks_of(service: Service) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(f"{service.url}/ready", timeout=20) as answer:  # noqa: S310  our own server
            return answer.status, json.load(answer)["checks"]
    except urllib.error.HTTPError as answer:
        return answer.code, json.load(answer)["checks"]


def test_jobs_that_no_worker_takes_need_attention_wherever_one_looks(
    page: Page, hasty: Service, git_host: GitHost
) -> None:
    handbook = git_host.create("acme/handbook")
    handbook.commit({"README.md": "# Handbook\n"})
    with Receiver(webhook_key=KEY) as receiver:
        token = onboard(page, hasty, receiver)
        with without_workers(hasty):
            repository_id = watch(hasty, token, handbook.url)
            page.goto(f"{hasty.url}/admin/")
            words = "jobs wait in snapshots, and no worker takes that queue"
            expect(page.locator(".dc-troubles").get_by_text(words)).to_be_visible()
            expect(page.locator(".dc-troubles").get_by_text("Start a worker")).to_be_visible()
            expect(page.get_by_text("nothing is fetched or delivered")).to_be_visible()
            expect(page.get_by_text("Nothing needs attention")).to_have_count(0)
            status, checks = checks_of(hasty)
            assert (status, checks["jobs"]) == (503, words)
            findings = json.loads(hasty.manage("doctor", "--json", check=False).stdout)["findings"]
            assert {"error": words} == {each["level"]: each["says"] for each in findings if each["check"] == "jobs"}
            assert f"jobs: {words}" in hasty.manage("check").stderr
            assert receiver.requests == []
        wait_until(lambda: receiver.files_of(repository_id) == handbook.files(), "the files arrive")
        page.goto(f"{hasty.url}/admin/")
        expect(page.get_by_text("Nothing needs attention.")).to_be_visible()
        wait_until(lambda: checks_of(hasty)[0] == 200, "it is ready again")
        assert "docora.W008" not in hasty.manage("check").stderr


class TestABodyIsShownAsItWasSent:
    @pytest.fixture
    def hasty(self, sqlite_service: Service, git_host: GitHost) -> Service:
        """What is larger than 3,000 bytes goes in pieces."""
        sqlite_service.environment |= {
            "DOCORA_GIT_HOSTS": git_host.address,
            "DOCORA_TRUSTED_NETWORKS": "127.0.0.0/8",
            "SCAN_INTERVAL": "1",
            "RESCAN_INTERVAL": "1",
            "BINARY_CHUNK_THRESHOLD_BYTES": "3000",
            "BINARY_CHUNK_SIZE_BYTES": "3000",
            "TEXT_CHUNK_THRESHOLD_BYTES": "5000",
        }
        return sqlite_service.start()

    def test_of_every_attempt(self, page: Page, hasty: Service, git_host: GitHost) -> None:
        remote = git_host.create("acme/handbook")
        files: dict[str, str | bytes] = {
            "large.bin": os.urandom(6000),
            "large.txt": "Grüße, <b>\u2028</b>\r\n" * 400,
            "small.bin": os.urandom(500),
            "small.txt": "\n\n  déjà vu </pre>&amp;\t\r\n",
            "gone.md": "soon\n",
        }
        remote.commit(files)
        with Receiver(webhook_key=KEY) as receiver:
            repository_id = watch(hasty, onboard(page, hasty, receiver), remote.url)
            wait_until(lambda: receiver.files_of(repository_id) == remote.files(), "the files arrive")
            remote.commit({"small.bin": os.urandom(500), "gone.md": None})
            wait_until(lambda: receiver.files_of(repository_id) == remote.files(), "the change arrives")
            got = {request.headers["webhook-id"]: request for request in receiver.requests}
        page.goto(f"{hasty.url}/admin/snapshots/delivery/")
        expect(page.locator("#result_list tbody tr")).to_have_count(len(got))
        links = page.locator("#result_list tbody th a").evaluate_all("links => links.map(link => link.href)")
        pieces = {}
        for link in links:
            page.goto(link)
            facts = dict(page.locator(".dc-facts > div").evaluate_all(
                "all => all.map(one => [...one.children].map(part => part.textContent.trim()))"
            ))  # fmt: skip
            request = got.pop(facts["Message id"])
            body = page.locator("pre.dc-code").nth(1).text_content() or ""
            assert body.encode() == request.body
            if chunk := request.section("file").get("chunk"):
                assert facts["Piece"] == f"{chunk['index'] + 1} of {chunk['total']}"
                pieces[request.path] = chunk["total"]
            else:
                assert "Piece" not in facts
        assert got == {}
        assert pieces == {"large.bin": 3, "large.txt": -(-(-(-len(remote.files()["large.txt"]) // 3) * 4) // 3000)}
