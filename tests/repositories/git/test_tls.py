"""Git hosts whose certificate is not to be believed, and one of an authority of our own."""

import asyncio
import ipaddress
from pathlib import Path

import pytest
from pytest_django import Settings

from repositories.errors import HostUnavailable
from repositories.git import clones, ls_refs
from repositories.git.urls import RemoteUrl
from tests.support.certificates import Authority
from tests.support.hostile_host import END, HostileHost, host, hostile_host, packet

COMMIT = "1" * 40


@pytest.fixture
def ours(tmp_path: Path, settings: Settings) -> Authority:
    """An authority that the settings name."""
    authority = Authority(tmp_path)
    settings.GIT_CA_FILE = authority.file
    return authority


def look_at(host_: HostileHost, settings: Settings) -> clones.Tip | None:
    settings.GIT_HOSTS = (host_.address,)
    settings.TRUSTED_NETWORKS = (ipaddress.ip_network("127.0.0.0/8"),)
    host_.answer = host(refs=[packet(f"{COMMIT} HEAD symref-target:refs/heads/main\n".encode()) + END])
    return clones.look(clones.Remote(url=RemoteUrl.parse(host_.url), token="ghp_secret"), "")


def test_an_authority_of_our_own_is_believed(ours: Authority, settings: Settings) -> None:
    with hostile_host(ours.server()) as there:
        tip = look_at(there, settings)
    assert tip
    assert tip.sha == COMMIT


def test_the_look_without_git_believes_it_too(ours: Authority, settings: Settings) -> None:
    with hostile_host(ours.server()) as there:
        look_at(there, settings)
        assert asyncio.run(unchanged(there))
    settings.GIT_CA_FILE = None
    with hostile_host(ours.server()) as there:
        with pytest.raises(HostUnavailable):
            look_at(there, settings)
        assert not asyncio.run(unchanged(there))
        assert there.questions == [], "the token was not sent"


async def unchanged(there: HostileHost) -> bool:
    remote = clones.Remote(url=RemoteUrl.parse(there.url), token="ghp_secret")
    asked = ls_refs.Host(remote.url)
    try:
        return (await asked.ask(remote, "", known=COMMIT)).is_unchanged
    finally:
        await asked.close()


@pytest.mark.parametrize(
    ("address", "days"), [pytest.param("127.0.0.2", 5, id="another name"), pytest.param("127.0.0.1", -1, id="expired")]
)
def test_a_certificate_that_is_expired_or_for_another_name_is_not(
    address: str, days: int, ours: Authority, settings: Settings
) -> None:
    with hostile_host(ours.server(address, days=days)) as there, pytest.raises(HostUnavailable, match="certificate"):
        look_at(there, settings)
    assert there.questions == [], "the token was not sent"


def test_an_unknown_authority_is_not_believed(
    ours: Authority, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.GIT_CA_FILE = None
    monkeypatch.setenv("GIT_SSL_NO_VERIFY", "1")
    with hostile_host(ours.server()) as there, pytest.raises(HostUnavailable, match="certificate"):
        look_at(there, settings)
    assert there.questions == [], "the token was not sent"
