"""The addresses that may be dialled."""

import ipaddress

import pytest
from pytest_django import Settings

from repositories.base.network import check_address, resolve
from repositories.errors import ForbiddenAddress, HostUnavailable


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200",
        "0.0.0.0", "255.255.255.255", "224.0.0.1", "240.0.0.1", "192.0.2.1", "198.18.0.1", "192.88.99.1",
        "192.0.0.192", "168.63.129.16", "3fff::1", "4000::1", "64:ff9b:1::7f00:1",
        "::1", "::", "fe80::1", "fe80::1%eth0", "fd00::1", "fd00:ec2::254", "ff02::1", "fec0::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::",
    ],
)  # fmt: skip
def test_what_is_not_public_is_refused_and_the_way_out_is_named(address: str) -> None:
    with pytest.raises(ForbiddenAddress, match="DOCORA_TRUSTED_NETWORKS"):
        check_address(address)


@pytest.mark.parametrize("address", ["140.82.121.3", "2606:50c0:8000::153", "::ffff:140.82.121.3"])
def test_public_addresses_are_dialled_over_https_only(address: str) -> None:
    check_address(address)
    with pytest.raises(ForbiddenAddress, match="https"):
        check_address(address, plain=True)


def test_a_trusted_network_is_dialled_also_over_http(settings: Settings) -> None:
    settings.TRUSTED_NETWORKS = (ipaddress.ip_network("10.1.0.0/16"),)
    check_address("10.1.2.3", plain=True)
    check_address("::ffff:10.1.2.3", plain=True)
    with pytest.raises(ForbiddenAddress):
        check_address("10.2.0.1")


@pytest.mark.parametrize("host", ["localhost", "localhost.", "2130706433", "0x7f000001", "0177.0.0.1", "127.1"])
def test_spellings_of_the_loopback_are_seen_through(host: str) -> None:
    with pytest.raises((ForbiddenAddress, HostUnavailable)):
        resolve(host, 443)
