"""Whether a URL can be dialled, for people who have just typed it. Nothing is sent."""

import socket
from typing import Any
from urllib.parse import urlsplit

from repositories.base import network
from repositories.errors import ForbiddenAddress

_PATIENCE = 3.0


def obstacle(url: str) -> str:
    """Why webhooks to this URL would fail now, as far as a connection shows it; empty if one address answers."""
    parts = urlsplit(url)
    host, plain = parts.hostname or "", parts.scheme == "http"
    port = parts.port or (80 if plain else 443)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError):
        return f"the name of {host} cannot be resolved"
    obstacles = [_obstacle_at(family, address, plain=plain) for family, _, _, _, address in found]
    return "" if "" in obstacles else obstacles[0]


def _obstacle_at(family: socket.AddressFamily, address: tuple[Any, ...], *, plain: bool) -> str:
    host, port, *_ = address
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        network.check_address(host, plain=plain)
        with socket.socket(family) as dialled:
            dialled.settimeout(_PATIENCE)
            dialled.connect(address)
    except ForbiddenAddress as error:
        return str(error).rstrip(".")
    except ConnectionRefusedError:
        return f"connection refused by {place}"
    except TimeoutError:
        return f"{place} does not answer within {_PATIENCE:g} s"
    except OSError as error:
        return f"no connection to {place}: {error.strerror or error}"
    return ""
