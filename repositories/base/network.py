"""Which addresses may be dialled: the address itself is judged, never its name or spelling."""

import ipaddress
import socket

from django.conf import settings

from repositories.errors import ForbiddenAddress, HostUnavailable

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Not public, although the ipaddress module of Python 3.11 does not say so, or a tunnel into what is not.
_NEVER_PUBLIC = [
    ipaddress.ip_network(text)
    for text in (
        "100.64.0.0/10",  # carrier-grade NAT
        "168.63.129.16/32",  # the host of a virtual machine at Azure
        "192.0.0.0/24",  # protocol assignments, and the metadata of some clouds
        "192.88.99.0/24",  # 6to4 relays
        "64:ff9b::/96",  # NAT64
        "64:ff9b:1::/48",  # NAT64, local use
        "2001::/32",  # Teredo
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
        "fec0::/10",  # site-local
    )
]


def check_address(text: str, *, plain: bool = False) -> None:
    """Refuse an address that is not public, or any address over plain http, unless its network is trusted."""
    address = unmapped(ipaddress.ip_address(text.partition("%")[0]))
    if any(address in network for network in settings.TRUSTED_NETWORKS):
        return
    if not _is_public(address):
        raise ForbiddenAddress(f"{address} is not a public address; DOCORA_TRUSTED_NETWORKS can allow its network.")
    if plain:
        raise ForbiddenAddress(
            f"{address} may only be dialled over https; DOCORA_TRUSTED_NETWORKS can allow plain http to its network."
        )


def resolve(host: str, port: int, *, plain: bool = False) -> list[str]:
    """The addresses of host, all of them allowed."""
    addresses = addresses_of(host, port, role="host")
    for address in addresses:
        check_address(address, plain=plain)
    return addresses


def addresses_of(name: str, port: int, *, role: str) -> list[str]:
    """Unchecked. `role` is for the error: what the name is the name of."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        raise HostUnavailable(f"The {role} {name} cannot be resolved.") from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def unmapped(address: Address) -> Address:
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address


def _is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    return not any(address in network for network in _NEVER_PUBLIC if network.version == address.version)
