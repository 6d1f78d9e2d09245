"""What the web server and the API both know: how large a body may be, that there was no room for one, and how short
requests are answered together.

Neither imports anything else of the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

# Bytes that the body of a short request has at most.
SHORT = 64 << 10
# That a hook has at most. GitHub sends no larger ones.
LARGEST = 25 << 20
# In the environ of a request whose body cannot be read because the server was reading too many other long ones.
NO_ROOM = "docora.no_room"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRequest:
    path: str
    """Without a query, and with nothing encoded in it."""
    headers: Mapping[str, str]
    """ASCII alone, each once; by names of any case."""
    body: bytes
    remote_address: str
    arrived: float
    """When all of it was there, by the monotonic clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    then: Callable[[], None] | None = None
    """What is left to be done once the answer is sent."""


class Answerer(Protocol):
    def prepare(self) -> None:
        """Called once, in the thread that answers, before the first request comes."""

    def takes(self, method: str, path: str, headers: Mapping[str, str]) -> bool:
        """Whether it answers such requests. All others are left to the application."""

    def answer_all(self, requests: Sequence[ShortRequest]) -> list[ShortAnswer]: ...
