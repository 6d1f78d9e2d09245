"""A real git host over HTTP on 127.0.0.1: its repositories, its tokens, what was asked of it, and how it fails.

It answers as GitHub does: names are case-insensitive and may end in `.git`; a private repository and one
that does not exist look alike (401 without a known token, 404 with a known one that lacks access). Every
request is recorded before it is answered. Leaving the `with` ends every connection and every git child.

`git_server` speaks HTTP for it, and `git_backend` runs git for each request.
"""

import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from docora.demo.bare import BareRepository
from docora.demo.faults import Fault, Faults
from docora.demo.git_server import Server
from docora.demo.github_api import GitHubApi

# In protocol 2, an ls-remote is an advertise and an ls-refs; a fetch is both of them and a fetch.
Kind = Literal["advertise", "ls-refs", "fetch", "push"]


class HostedRepository(BareRepository):
    """A repository and who may read it: everybody, or those whose token is in `private_to`."""

    def __init__(
        self,
        path: Path,
        *,
        name: str,
        url: str,
        private_to: frozenset[str] | None,
        branch: str,
        copy_of: BareRepository | None = None,
    ) -> None:
        super().__init__(path, default_branch=branch, copy_of=copy_of)
        self.name = name
        self.url = url
        self.private_to = private_to


@dataclass(slots=True)
class GitRequest:
    """One request as it came in; the status follows when it is answered."""

    repository: str
    kind: Kind
    token: str
    at: float
    status: int | None = None


@dataclass(eq=False, kw_only=True)
class GitFault(Fault):
    """How the host fails. What happens `after` a number of bytes happens in the middle of a shorter pack."""

    repository: HostedRepository | None = None
    kinds: Collection[Kind] = ("advertise", "ls-refs", "fetch", "push")
    status: int | None = None
    retry_after: int | None = None
    redirect_to: HostedRepository | None = None
    hang: bool = False
    hang_after: int | None = None
    drop_after: int | None = None
    bytes_per_second: int | None = None

    def __post_init__(self) -> None:
        if self.redirect_to:
            self.status = 301

    def concerns(self, repository: HostedRepository | None, kind: Kind) -> bool:
        if kind != "fetch" and (self.breaks_after is not None or self.bytes_per_second):
            return False
        return kind in self.kinds and (self.repository is None or self.repository is repository)

    def headers(self, endpoint: str) -> dict[str, str]:
        """What goes with the status."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"Location": f"{self.redirect_to.url}/{endpoint}"} if self.redirect_to else {})

    @property
    def breaks_after(self) -> int | None:
        """The number of bytes of a pack after which something happens to it."""
        return self.hang_after if self.drop_after is None else self.drop_after


class GitHost:
    """`with GitHost(root) as host:` serves until the block ends.

    It fails on demand: `with host.faults.put(GitFault(status=503, repository=repo)): ...`
    """

    def __init__(self, root: Path) -> None:
        self.requests: list[GitRequest] = []
        self.closing = threading.Event()
        self.faults: Faults[GitFault] = Faults()
        self.api: GitHubApi | None = None
        self._root = root
        self._repositories: dict[str, HostedRepository] = {}
        self._known_tokens: set[str] = set()
        self._lock = threading.Lock()
        self._server = Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="git host")

    @property
    def address(self) -> str:
        """host:port, as in the URLs of its repositories."""
        return f"127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.faults.lift_all()
        self._server.shutdown()
        self._thread.join()
        self._server.end_connections()
        self._server.server_close()

    def create(
        self,
        name: str,
        *,
        private_to: Collection[str] | None = None,
        default_branch: str = "main",
        copy_of: BareRepository | None = None,
    ) -> HostedRepository:
        """A repository `owner/name`, private to the given tokens or public; empty, or a copy of another one."""
        with self._lock:
            repository = HostedRepository(
                self._root / f"{name}.git",
                name=name,
                url=f"http://{self.address}/{name}",
                private_to=None if private_to is None else frozenset(private_to),
                branch=default_branch,
                copy_of=copy_of,
            )
            self._repositories[name.lower()] = repository
            self._known_tokens.update(private_to or ())
        return repository

    def remove(self, repository: HostedRepository) -> None:
        """Delete the repository, as its owner would."""
        with self._lock:
            del self._repositories[repository.name.lower()]

    def find(self, name: str) -> HostedRepository | None:
        with self._lock:
            return self._repositories.get(name.lower())

    def grant(self, repository: HostedRepository, token: str) -> None:
        """Let a token read a private repository; one that was public is private from now on."""
        with self._lock:
            repository.private_to = (repository.private_to or frozenset()) | {token}
            self._known_tokens.add(token)

    def revoke(self, repository: HostedRepository, token: str) -> None:
        """Take a repository from a token, which stays known: 404 from now on."""
        with self._lock:
            repository.private_to = (repository.private_to or frozenset()) - {token}

    def add_token(self, token: str) -> None:
        """Make a token known that can read nothing private."""
        with self._lock:
            self._known_tokens.add(token)

    def expire_token(self, token: str) -> None:
        """Forget a token: 401 from now on, wherever it may have had access."""
        with self._lock:
            self._known_tokens.discard(token)

    def count(self, repository: HostedRepository, kind: Kind) -> int:
        """How many requests of a kind have come in for a repository."""
        with self._lock:
            return sum(seen.repository == repository.name and seen.kind == kind for seen in self.requests)

    def record(self, name: str, kind: Kind, token: str) -> tuple[HostedRepository | None, GitRequest]:
        with self._lock:
            repository = self._repositories.get(name.lower())
            request = GitRequest(repository.name if repository else name, kind, token, time.time())
            self.requests.append(request)
        return repository, request

    def fault_for(self, repository: HostedRepository | None, kind: Kind) -> GitFault:
        """The fault that this request must show; one without effect if there is none."""
        return self.faults.take(lambda fault: fault.concerns(repository, kind)) or GitFault()

    def refusal(self, repository: HostedRepository | None, token: str) -> int | None:
        """The status that keeps a token out; None lets it in."""
        with self._lock:
            if repository and repository.private_to is None:
                return None
            if token not in self._known_tokens:
                return 401
            return None if repository and token in (repository.private_to or ()) else 404
