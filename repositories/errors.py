"""The error tree.

    DocoraError
    ├── InvalidUrl               the URL cannot name a repository here            (caller)
    ├── ForbiddenAddress         the address dialled is private                   (caller)
    ├── GitError                 git said no
    │   ├── AccessDenied         this token cannot read the repository            (watch)
    │   ├── RefNotFound          the branch or tag is not there                   (repository)
    │   ├── CommitGone           the commit seen a moment ago is not given        (repository)
    │   ├── Moved                redirected to where we do not follow             (repository)
    │   ├── HostUnavailable      down, slow, throttling; try again                (repository)
    │   ├── TooLarge             more than DOCORA_MAX_REPOSITORY_BYTES or _FILES  (repository)
    │   ├── DiskFull             no room for the clone on our side                (repository)
    │   ├── CloneDamaged         the clone is gone or broken; made anew           (repository)
    │   └── GitFailed            anything else                                    (repository)
    ├── LockTimeoutError         somebody else held the lock for too long         (nobody; retried)
    └── LockLostError            we stopped being the holder; nothing was written (nobody; retried)

In brackets: against whom it counts. `code` is stable, for machines; the text is for people and
has been redacted before it gets here.
"""

from dataclasses import dataclass


class DocoraError(Exception):
    code = "error"
    retriable = False


class InvalidUrl(DocoraError):
    code = "invalid-url"


class ForbiddenAddress(DocoraError):
    code = "forbidden-address"


class GitError(DocoraError):
    code = "git-failed"
    retriable = True


class AccessDenied(GitError):
    code = "no-access"


class RefNotFound(GitError):
    code = "ref-not-found"


class CommitGone(GitError):
    code = "commit-gone"


class Moved(GitError):
    code = "moved"

    def __init__(self, text: str, *, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class HostUnavailable(GitError):
    code = "host-unavailable"


class TooLarge(GitError):
    code = "too-large"
    # Not before the next probe: each attempt is a download up to the limit.
    retriable = False


class DiskFull(GitError):
    code = "disk-full"


class CloneDamaged(GitError):
    code = "clone-damaged"


class GitFailed(GitError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a lock, as the holder itself said when it took it."""

    job_id: str
    host: str
    pid: int
    since: float


def name_of(holder: Holder | None) -> str:
    return f"job {holder.job_id}" if holder else "an unknown job"


class LockTimeoutError(DocoraError):
    code = "lock-timeout"
    retriable = True

    def __init__(self, repo_path: str, holder: Holder | None, waited: float) -> None:
        super().__init__(repo_path, holder, waited)
        self.repo_path = repo_path
        self.holder = holder
        self.waited = waited

    def __str__(self) -> str:
        return f"lock on {self.repo_path} is held by {name_of(self.holder)}; gave up after {self.waited:.1f} s"


class LockLostError(DocoraError):
    code = "lock-lost"
    retriable = True

    def __init__(self, repo_path: str) -> None:
        super().__init__(repo_path)
        self.repo_path = repo_path

    def __str__(self) -> str:
        return f"lock on {self.repo_path} was lost; nothing more may be written"
