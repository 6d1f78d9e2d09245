"""Git, the scheduler's looks and webhooks through a forward proxy, with certificates of an authority of our own."""

import asyncio
import ipaddress
import json
import logging
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pytest_django import Settings

from docora.processes import doctor
from repositories import accounts, github_app
from repositories.base import proxy
from repositories.base.proxy import Proxy
from repositories.errors import DocoraError, ForbiddenAddress, HostUnavailable
from repositories.git import clones
from repositories.git.urls import RemoteUrl
from repositories.github_app import _api
from repositories.models import App
from snapshots.delivery.webhooks import Answer, Message, WebhookClient
from tests.repositories.git.test_tls import COMMIT, look_at, unchanged
from tests.support.certificates import Authority
from tests.support.hostile_host import Answer as HostAnswer
from tests.support.hostile_host import HostileHost, Question, hostile_host
from tests.support.proxy import ForwardProxy, forward_proxy
from tests.support.served import served

pytestmark = pytest.mark.any_database

PASSWORD = "pr0xy-password-of-ours"


@pytest.fixture
def ours(tmp_path: Path, settings: Settings) -> Authority:
    authority = Authority(tmp_path)
    settings.GIT_CA_FILE = settings.CA_FILE = authority.file
    return authority


@pytest.fixture
def way(settings: Settings) -> Iterator[ForwardProxy]:
    """A proxy that wants a password, which the settings have."""
    with forward_proxy(user="docora", password=PASSWORD) as made:
        settings.HTTP_PROXY = made.url.replace("://", f"://docora:{PASSWORD}@")
        yield made


@pytest.fixture
def open_way(way: ForwardProxy, settings: Settings) -> ForwardProxy:
    """Without a password: where there is one, the client would put it in the place of other credentials."""
    way.user, settings.HTTP_PROXY = "", way.url
    return way


@pytest.fixture
def there(ours: Authority) -> Iterator[HostileHost]:
    with hostile_host(ours.server()) as host:
        yield host


class TestGit:
    def test_goes_through_it_and_the_proxy_does_not_see_the_token(
        self, way: ForwardProxy, there: HostileHost, settings: Settings
    ) -> None:
        tip = look_at(there, settings)
        assert tip
        assert tip.sha == COMMIT
        assert way.heads, "it was asked"
        assert all(head.startswith(f"CONNECT {there.address} ") for head in way.heads)
        token = there.questions[0].authorization.removeprefix("Basic ")
        assert token
        assert token not in "".join(way.heads)

    def test_so_does_the_look_without_git(self, open_way: ForwardProxy, there: HostileHost, settings: Settings) -> None:
        look_at(there, settings)
        open_way.heads.clear()
        assert asyncio.run(unchanged(there))
        assert open_way.heads
        token = there.questions[-1].authorization.removeprefix("Basic ")
        assert token
        assert token not in "".join(open_way.heads)

    def test_so_do_the_calls_of_the_github_app(
        self, open_way: ForwardProxy, there: HostileHost, settings: Settings
    ) -> None:
        look_at(there, settings)
        open_way.heads.clear()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        settings.GITHUB_APP_ID, settings.GITHUB_APP_API_URL = "1", f"https://{there.address}"
        settings.GITHUB_APP_PRIVATE_KEY = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        there.answer = lambda _: HostAnswer([b"{}"], status=404, headers={"Content-Type": "application/json"})
        assert _api.make_token("acme", "handbook") is None
        assert open_way.heads
        signed = there.questions[-1].authorization.removeprefix("Bearer ")
        assert signed
        assert signed not in "".join(open_way.heads)

    def test_a_private_target_is_not_asked_for_by_git(
        self, way: ForwardProxy, there: HostileHost, settings: Settings
    ) -> None:
        settings.GIT_HOSTS, settings.TRUSTED_NETWORKS = (there.address,), ()
        with pytest.raises(ForbiddenAddress):
            clones.look(clones.Remote(url=RemoteUrl.parse(there.url)), "")
        assert way.heads == []

    def test_dials_the_address_of_the_proxy_that_was_checked(
        self, way: ForwardProxy, there: HostileHost, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only our own resolver knows the name, so a git that looks it up by itself finds nothing."""
        address, resolve = "127.0.0.1", socket.getaddrinfo

        def resolve_ours(name: str, *rest: Any, **more: Any) -> Any:
            return resolve(address if name == "proxy.invalid" else name, *rest, **more)

        monkeypatch.setattr(socket, "getaddrinfo", resolve_ours)
        settings.HTTP_PROXY = settings.HTTP_PROXY.replace("127.0.0.1", "proxy.invalid")
        assert look_at(there, settings)
        address = "169.254.169.254"
        with pytest.raises(ForbiddenAddress, match="proxy"):
            look_at(there, settings)

    def test_a_host_that_is_excepted_is_dialled_directly(
        self, way: ForwardProxy, there: HostileHost, settings: Settings
    ) -> None:
        settings.NO_PROXY = (ipaddress.ip_network("127.0.0.0/8"),)
        assert look_at(there, settings)
        assert asyncio.run(unchanged(there))
        assert way.heads == []

    def test_a_refusal_of_the_proxy_quotes_no_password(
        self, way: ForwardProxy, there: HostileHost, settings: Settings, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG, "docora")
        way.user = "somebody-else"
        with pytest.raises(DocoraError) as caught:
            look_at(there, settings)
        assert not asyncio.run(unchanged(there))
        told = f"{caught.value!r} {caught.value} {caplog.text}"
        assert PASSWORD not in told
        assert way.expected.removeprefix("Basic ") not in told
        assert there.questions == []

    def test_the_password_is_in_no_argument_list(
        self, way: ForwardProxy, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A git in the place of git writes down with what it was started."""
        (tmp_path / "git").write_text(f'#!/bin/sh\nprintf "%s " "$@" > {tmp_path}/arguments\nenv > {tmp_path}/seen\n')
        (tmp_path / "git").chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        settings.GIT_HOSTS = ("git.example.com",)
        remote = clones.Remote(url=RemoteUrl.parse("https://git.example.com/acme/handbook"), token="ghp_secret")
        clones.look(remote, "")
        arguments = (tmp_path / "arguments").read_text()
        assert "ls-remote" in arguments
        assert PASSWORD not in arguments
        assert (tmp_path / "seen").read_text().count(PASSWORD) == 1, "as a value of its configuration alone"
        assert PASSWORD not in f"{proxy.configured()!r} {remote!r}"


class TestTheGitHubApp:
    """The questions to its API, over TLS."""

    @pytest.fixture
    def remote(self, there: HostileHost, settings: Settings) -> RemoteUrl:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        settings.GITHUB_APP_ID = "12345"
        settings.GITHUB_APP_PRIVATE_KEY = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        settings.GITHUB_APP_API_URL = f"https://{there.address}/api/v3"
        settings.GIT_HOSTS = (there.address,)
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
        there.answer = self.answer
        return RemoteUrl.parse(there.url)

    def answer(self, question: Question) -> HostAnswer:
        facts: dict[str, object] = (
            {"id": 7, "account": {"login": "acme"}}
            if "installation" in question.path.rpartition("/")[2]
            else {"token": "ghs_one"}
        )
        facts |= {"expires_at": "2100-01-01T00:00:00Z"}
        return HostAnswer([json.dumps(facts).encode()], headers={"Content-Type": "application/json"})

    def test_go_through_it_and_the_proxy_sees_neither_signature_nor_token(
        self, way: ForwardProxy, there: HostileHost, remote: RemoteUrl
    ) -> None:
        assert github_app.token_of_installation(remote) == "ghs_one"
        assert [head.split(" HTTP")[0] for head in way.heads] == [f"CONNECT {there.address}"] * 2
        assert [question.path.rpartition("/")[2] for question in there.questions] == ["installation", "access_tokens"]
        signed = there.questions[0].authorization.removeprefix("Bearer ")
        assert signed
        assert signed not in "".join(way.heads)

    def test_a_private_address_is_not_asked_for(
        self, way: ForwardProxy, there: HostileHost, remote: RemoteUrl, settings: Settings
    ) -> None:
        settings.TRUSTED_NETWORKS = ()
        with pytest.raises(HostUnavailable):
            github_app.token_of_installation(remote)
        assert (way.heads, there.questions) == ([], [])

    def test_neither_is_the_proxy_at_an_address_that_is_none_for_a_proxy(
        self, way: ForwardProxy, there: HostileHost, remote: RemoteUrl, settings: Settings
    ) -> None:
        settings.HTTP_PROXY = "http://169.254.169.254:3128"
        with pytest.raises(HostUnavailable, match="cannot be reached"):
            github_app.token_of_installation(remote)
        assert there.questions == []

    def test_a_renamed_repository_is_followed_within_the_api_alone(
        self, way: ForwardProxy, there: HostileHost, remote: RemoteUrl, settings: Settings
    ) -> None:
        moved = {"Location": f"{settings.GITHUB_APP_API_URL}/repositories/42/installation"}
        there.answer = lambda question: (
            HostAnswer(status=301, headers=moved) if "/repos/" in question.path else self.answer(question)
        )
        assert github_app.token_of_installation(remote) == "ghs_one"
        asked = len(there.questions)
        github_app.forget_token(remote)
        for elsewhere in ("http://169.254.169.254/latest/meta-data", f"{settings.GITHUB_APP_API_URL}.evil.example/"):
            moved["Location"] = elsewhere
            with pytest.raises(HostUnavailable, match="301"):
                github_app.token_of_installation(remote)
        assert len(there.questions) == asked + 2
        assert all(head.startswith(f"CONNECT {there.address} ") for head in way.heads)


class TestWhatIsStillChecked:
    @pytest.fixture(autouse=True)
    def proxied(self, settings: Settings) -> None:
        settings.HTTP_PROXY = "http://127.0.0.1:3128"

    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "::1", "[::1]", "::ffff:10.0.0.1", "169.254.169.254",
                 "localhost", "LOCALHOST.", "a.localhost"],
    )  # fmt: skip
    def test_a_target_that_is_an_address(self, host: str) -> None:
        with pytest.raises(ForbiddenAddress):
            proxy.check_target(host, plain=False)

    def test_a_name_is_asked_for_over_https_alone(self, settings: Settings) -> None:
        proxy.check_target("git.example.com", plain=False)
        with pytest.raises(ForbiddenAddress, match="https"):
            proxy.check_target("git.example.com", plain=True)
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("10.0.0.0/8"),)
        proxy.check_target("10.1.2.3", plain=True)

    @pytest.mark.parametrize("address", ["169.254.169.254", "224.0.0.1", "0.0.0.0", "fe80::1"])
    def test_the_proxys_own_address(self, address: str) -> None:
        with pytest.raises(ForbiddenAddress):
            proxy.check_own_address(address)
        proxy.check_own_address("10.0.0.8")

    @pytest.mark.parametrize(
        ("host", "is_direct"),
        [
            ("example.com", True),
            ("git.example.com", True),
            ("GIT.EXAMPLE.COM.", True),
            ("badexample.com", False),
            ("10.1.2.3", True),
            ("11.1.2.3", False),
        ],
    )
    def test_hosts_that_are_excepted(self, host: str, is_direct: bool, settings: Settings) -> None:
        settings.NO_PROXY = ("example.com", ipaddress.ip_network("10.0.0.0/8"))
        assert (proxy.for_host(host) is None) == is_direct


@pytest.mark.parametrize("text", ["proxy:3128", "socks5://proxy", "https://proxy", "http://proxy/path", "http://"])
def test_what_is_no_proxy(text: str) -> None:
    with pytest.raises(ValueError, match=r"^$"):
        Proxy.parse(text)


def test_credentials_may_have_any_characters() -> None:
    made = Proxy.parse("http://us%40er:p%3Aa%2Fs@proxy.example.com")
    assert (made.user, made.password, made.port) == ("us@er", "p:a/s", 3128)
    assert made.secret_url == "http://us%40er:p%3Aa%2Fs@proxy.example.com:3128"
    assert "p:a/s" not in made.url


@pytest.mark.django_db
class TestWebhooks:
    @pytest.fixture(autouse=True)
    def trusted(self, settings: Settings) -> None:
        settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)

    def post(self, tls: ssl.SSLContext) -> Answer:
        """To a receiver that speaks TLS; it answers in a loop of its own, while ours stands still."""
        with served(receiver, tls=tls) as port:
            credentials = accounts.onboard("Alice's search", f"https://127.0.0.1:{port}")
            app = App.objects.get(public_id=credentials.app_id)
            with WebhookClient[Message](app, timeout=10) as client:
                return client.post(Message(event="ping", id="msg_1", body=b"{}"))

    def test_go_through_it(self, way: ForwardProxy, ours: Authority) -> None:
        assert self.post(ours.server()).status == 200
        assert len(way.heads) == 1
        assert "webhook-signature" not in way.heads[0].lower()

    def test_believe_an_authority_of_our_own_and_no_unknown_one(self, ours: Authority, settings: Settings) -> None:
        assert self.post(ours.server()).status == 200
        settings.CA_FILE = None
        assert self.post(ours.server()).error_class == "tls"

    def test_a_proxy_that_refuses_or_is_away_is_told_in_words(
        self, way: ForwardProxy, ours: Authority, settings: Settings
    ) -> None:
        way.user = "somebody-else"
        refused = self.post(ours.server())
        assert (refused.error_class, PASSWORD in refused.error) == ("proxy", False)
        assert "it answered 407" in refused.error
        settings.HTTP_PROXY = "http://127.0.0.1:1"
        away = self.post(ours.server())
        assert away.error_class == "proxy"
        assert away.error.startswith("no connection to the proxy on the way to 127.0.0.1:")

    def test_a_proxy_where_machines_keep_their_metadata_is_not_dialled(
        self, ours: Authority, settings: Settings
    ) -> None:
        settings.HTTP_PROXY = "http://169.254.169.254:3128"
        assert self.post(ours.server()).error_class == "forbidden-address"

    def test_a_private_target_is_not_asked_for(self, way: ForwardProxy, ours: Authority, settings: Settings) -> None:
        settings.TRUSTED_NETWORKS = ()
        assert self.post(ours.server()).error_class == "forbidden-address"
        assert way.heads == []


def receiver() -> web.ServerRunner:
    """One that accepts everything."""

    async def answer(_request: web.BaseRequest) -> web.Response:
        return web.Response()

    return web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)


@pytest.mark.django_db(transaction=True)
def test_doctor_looks_at_hosts_through_it(way: ForwardProxy, there: HostileHost, settings: Settings) -> None:
    settings.GIT_HOSTS = (there.address,)
    settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    findings = {finding.check: finding for finding in doctor.examine()}
    assert findings["forward proxy"].level == doctor.Level.OK
    assert "valid until" in findings[f"git host {there.address}"].says
    assert any(there.address in head for head in way.heads)
    assert PASSWORD not in repr(findings)
