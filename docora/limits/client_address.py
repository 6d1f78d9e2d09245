"""The address of a client, which limits count against."""

import ipaddress
from collections.abc import Mapping

from django.conf import settings
from django.http import HttpRequest


def client_address(request: HttpRequest) -> str:
    return address_behind_proxies(request.META.get("REMOTE_ADDR", ""), request.headers)


def address_behind_proxies(address: str, headers: Mapping[str, str]) -> str:
    """The last address that a proxy of ours saw; a client may invent what stands before it in the header."""
    forwarded = [hop.strip() for hop in headers.get("X-Forwarded-For", "").split(",") if hop.strip()]
    while forwarded and _is_trusted(address):
        address = forwarded.pop()
    return address


def _is_trusted(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    # A socket that listens on :: shows IPv4 addresses within IPv6 ones. The operator may have named either.
    forms = (parsed, getattr(parsed, "ipv4_mapped", None) or parsed)
    return any(form in network for network in settings.TRUSTED_PROXIES for form in forms)
