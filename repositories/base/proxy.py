"""The forward proxy, where a network has no other way out (DOCORA_HTTP_PROXY).

A proxy resolves names by itself, so the address behind a name cannot be judged here any more. What still is: the
proxy's own address, a target that is written as an address, and, in `RemoteUrl`, the list of git hosts.
"""

import ipaddress
import socket
from base64 import b64encode
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from django.conf import settings

from repositories.base import network
from repositories.errors import ForbiddenAddress

_USUAL_PORT = 3128


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    host: str
    port: int
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> "Proxy":
        """From http://user:password@host:port; ValueError for anything else."""
        parts = urlsplit(text)
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query or parts.fragment:
            raise ValueError
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        return cls(host=parts.hostname, port=parts.port or _USUAL_PORT, user=user, password=password)

    @property
    def url(self) -> str:
        """Without the credentials."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def secret_url(self) -> str:
        """With the credentials, for the environment of a git child alone."""
        if not self.user:
            return self.url
        return self.url.replace("://", f"://{quote(self.user, safe='')}:{quote(self.password, safe='')}@", 1)

    @property
    def headers(self) -> dict[str, str]:
        """What the proxy itself wants to see."""
        if not self.user:
            return {}
        return {"Proxy-Authorization": "Basic " + b64encode(f"{self.user}:{self.password}".encode()).decode()}


def resolve(through: Proxy) -> list[str]:
    """The addresses of the proxy, all of them allowed."""
    addresses = network.addresses_of(through.host, through.port, role="proxy")
    for address in addresses:
        check_own_address(address)
    return addresses


def for_host(host: str) -> Proxy | None:
    """The proxy through which this host is reached; None: directly."""
    through = configured()
    return None if through is None or _is_direct(host.lower().rstrip(".")) else through


def configured() -> Proxy | None:
    return Proxy.parse(settings.HTTP_PROXY) if settings.HTTP_PROXY else None


def _is_direct(host: str) -> bool:
    address = _literal(host)
    for entry in settings.NO_PROXY:
        if isinstance(entry, str):
            if host == entry.lstrip(".") or host.endswith(f".{entry.lstrip('.')}"):
                return True
        elif address and address in entry:
            return True
    return False


def check_target(host: str, *, plain: bool) -> None:
    """Before a proxy is asked for it: an address by the rules of direct dialling, a name over https alone."""
    name = host.lower().rstrip(".")
    literal = "127.0.0.1" if name == "localhost" or name.endswith(".localhost") else _literal(name)
    if literal:
        network.check_address(str(literal), plain=plain)
    elif plain:
        raise ForbiddenAddress(f"{host} may only be asked for over https through the proxy; see DOCORA_NO_PROXY.")


def check_own_address(text: str) -> None:
    """A proxy is mostly on a private address, but never where machines keep their metadata."""
    address = network.unmapped(ipaddress.ip_address(text.partition("%")[0]))
    if address.is_link_local or address.is_multicast or address.is_unspecified or address.is_reserved:
        raise ForbiddenAddress(f"{address} cannot be the address of a proxy; see DOCORA_HTTP_PROXY.")


def _literal(host: str) -> "network.Address | None":
    """The address that the host is written as, in any of the forms that some programs take for one."""
    try:
        return network.unmapped(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        return ipaddress.ip_address(socket.inet_aton(host))  # 127.1, 0x7f000001, 2130706433
    except (OSError, UnicodeError):
        return None
