"""Every error that Docora expects, in one tree.

    DocoraError
    ├── InvalidUrl               the URL cannot name a repository here              (caller)
    ├── ForbiddenAddress         the address dialled is private                     (caller)
    ├── GitError                 git failed; its subclasses say how
    │   ├── AccessDenied         this token cannot read the repository              (watch)
    │   ├── RefNotFound          the branch or tag does not exist                   (repository)
    │   ├── CommitGone           the host no longer gives the commit seen before    (repository)
    │   ├── Moved                redirected to an address that is not followed      (repository)
    │   ├── HostUnavailable      down, slow or throttling                           (repository)
    │   ├── TooLarge             more than DOCORA_MAX_REPOSITORY_BYTES or _FILES    (repository)
    │   ├── LimitExceeded        git needs more memory or time than it may take     (repository)
    │   ├── DiskFull             no room for the clone on our side                  (repository)
    │   └── CloneDamaged         the clone is gone or broken; it is made anew       (repository)
    ├── DeliveryFailed           the app's endpoint accepts nothing now             (watch)
    ├── EndpointDisabled         nothing is sent to the app until it is enabled     (app)
    ├── LockTimeoutError         another job held the lock for too long             (nobody; retried)
    ├── LockLostError            the lock was lost; nothing was written             (nobody; retried)
    └── Unauthenticated, WrongProof, Malformed, NotFound, LengthRequired, BodyTooLarge, BodyIncomplete, NotWatched,
        NoHook, TokenRefused, TokenNeeded, TooManyTokens, BaseUrlFixed, InvalidBaseUrl, AppGone, InvalidCursor,
        CursorExpired, NoSuchFile, NoSuchDelivery, ContentUnavailable, RangeNotSatisfiable, TooManyWatches,
        RateLimited, TooManyNewWatches, TooManyAtOnce, Busy, QueueUnavailable: answers of the API
                                                                                    (caller)

In brackets: against whom it counts. Texts are for people and have been redacted before they get here.
"""

import math
from dataclasses import dataclass


class DocoraError(Exception):
    # For machines; published, so it never changes.
    code = "error"
    # What it says if it is raised without words of its own.
    text = ""
    # What the API answers.
    http_status = 502
    retriable = False
    # Seconds, told with 429 and 503.
    retry_after = 30
    # Completes "The repository could not be read: …." for every app that watches. Git's own words stay with the
    # operator: they may name hosts, accounts and tokens of another app.
    reason = "git reported an error"
    # What an operator can do about it.
    hint = ""

    def __init__(self, *words: object) -> None:
        super().__init__(*words or (self.text,))


class InvalidUrl(DocoraError):
    code = "invalid-url"
    http_status = 422
    reason = "its host may not be watched any more"
    hint = "The host was taken off DOCORA_GIT_HOSTS. Add it again, or let the app unwatch the repository."


class ForbiddenAddress(DocoraError):
    code = "forbidden-address"
    http_status = 422
    reason = "its host has an address that may not be dialled"
    hint = "The host's name leads to a private address. DOCORA_TRUSTED_NETWORKS can allow its network."


class GitError(DocoraError):
    code = "git-failed"
    retriable = True
    hint = "Read git's message. If it does not pass by itself, try Re-clone on the repository's page."


class AccessDenied(GitError):
    code = "no-access"
    hint = "The host refuses this token, or the repository is gone. Ask for a new token and change it here."

    def __init__(self, text: str, *, http_status: int = 404) -> None:
        super().__init__(text)
        # 403 where the app is known to watch the repository, 404 where saying so would give that away.
        self.http_status = http_status


class RefNotFound(GitError):
    code = "ref-not-found"
    http_status = 422
    reason = "the branch or tag is not there any more"
    hint = "The branch or tag is not there any more. The app must watch another one."


class CommitGone(GitError):
    code = "commit-gone"


class Moved(GitError):
    code = "moved"
    reason = "it has moved to where it cannot be followed"
    hint = "The repository has a new address that Docora may not follow. The app must watch the new one."

    def __init__(self, text: str, *, trace: str = "") -> None:
        super().__init__(text)
        self.trace = trace


class HostUnavailable(GitError):
    code = "host-unavailable"
    http_status = 503
    reason = "its host cannot be reached or does not answer"
    hint = "The git host is down, slow or throttling. It is tried again by itself."


class TooLarge(GitError):
    code = "too-large"
    # Not before the next probe: each attempt is a download up to the limit.
    retriable = False
    reason = "it is larger than allowed"
    hint = "The repository is larger than this Docora allows."


class LimitExceeded(GitError):
    code = "git-limits"
    # Nothing would be different the next time.
    retriable = False
    reason = "reading it takes more memory or time than allowed"
    hint = "Git would exceed DOCORA_GIT_MEMORY_BYTES or DOCORA_GIT_CPU_SECONDS. Raise them if you trust the repository."


class DiskFull(GitError):
    code = "disk-full"
    reason = "there is no room for it at the moment"
    hint = "Free space on the volume with the clones, then reset the circuit."


class CloneDamaged(GitError):
    code = "clone-damaged"
    reason = "the copy of it is damaged and is being made anew"
    hint = "The clone is being made anew. If it comes back, look at the disk."


class DeliveryFailed(DocoraError):
    code = "delivery-failed"
    retriable = True
    hint = "The app's endpoint does not accept what is sent. Ping it, look at its deliveries, then retry."


class EndpointDisabled(DocoraError):
    code = "endpoint-disabled"
    http_status = 409
    hint = "The app is disabled. Ping it, and enable it when it answers."


class Unauthenticated(DocoraError):
    code = "unauthenticated"
    http_status = 401
    text = "A valid bearer token is needed."


class WrongProof(DocoraError):
    code = "wrong-proof"
    http_status = 401
    text = "There is no such hook, or the proof is wrong."


class Malformed(DocoraError):
    code = "malformed"
    http_status = 422

    def __init__(self, text: str, *, http_status: int = http_status) -> None:
        super().__init__(text)
        self.http_status = http_status


class NotFound(DocoraError):
    code = "not-found"
    http_status = 404
    text = "Nothing is here."


class LengthRequired(DocoraError):
    code = "length-required"
    http_status = 411
    text = "A body needs a Content-Length."


class BodyTooLarge(DocoraError):
    code = "body-too-large"
    http_status = 413

    def __init__(self, most: int) -> None:
        super().__init__(f"A body may have {most} bytes.")


class BodyIncomplete(DocoraError):
    code = "body-incomplete"
    http_status = 408
    text = "The body did not arrive."


class NotWatched(DocoraError):
    code = "not-watched"
    http_status = 404
    text = "This app does not watch a repository of that id."


class NoHook(DocoraError):
    code = "no-hook"
    http_status = 404
    text = "This watch has no hook."


class QueueUnavailable(DocoraError):
    """What was asked for cannot be handed to the workers now."""

    code = "queue-unavailable"
    http_status = 503
    retriable = True
    retry_after = 5
    text = "The queue does not answer at the moment; see Retry-After."


class TokenRefused(DocoraError):
    code = "token-refused"
    http_status = 422
    text = "The new token cannot read the repository."


class TokenNeeded(DocoraError):
    code = "token-needed"
    http_status = 422
    text = "The repository cannot be read without a token. The watch keeps the one that it has."


class TooManyTokens(DocoraError):
    code = "too-many-tokens"
    http_status = 409

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} earlier bearer tokens are valid yet. Wait until one of them ends, or rotate with an overlap of 0,"
            " which ends them all."
        )


class BaseUrlFixed(DocoraError):
    code = "base-url-fixed"
    http_status = 403
    text = "The operator has not allowed this app to change its base URL."


class InvalidBaseUrl(DocoraError):
    code = "invalid-base-url"
    http_status = 422


class AppGone(DocoraError):
    code = "app-gone"
    http_status = 401
    text = "The app has been deleted."


class InvalidCursor(DocoraError):
    code = "invalid-cursor"
    http_status = 422
    text = "cursor: not one that Docora gave out"


class CursorExpired(DocoraError):
    code = "cursor-expired"
    http_status = 410
    text = "This place is not known any more; start over without it."


class NoSuchFile(DocoraError):
    code = "no-such-file"
    http_status = 404
    text = "The newest snapshot has no such file, or the watch's options leave it out."


class NoSuchDelivery(DocoraError):
    code = "no-such-delivery"
    http_status = 404
    text = "This watch has no delivery of that id."


class ContentUnavailable(DocoraError):
    """This web process does not see the clones, or the clone is being made anew."""

    code = "content-unavailable"
    http_status = 503
    retriable = True
    text = "The content cannot be read here at the moment."


class RangeNotSatisfiable(DocoraError):
    code = "range-not-satisfiable"
    http_status = 416

    def __init__(self, size: int) -> None:
        super().__init__(f"The file has {size} bytes.")
        self.size = size


class TooManyWatches(DocoraError):
    code = "too-many-watches"
    http_status = 409

    def __init__(self, most: int) -> None:
        super().__init__(f"This app watches {most} repositories, which is as many as it may. Unwatch one first.")


class RateLimited(DocoraError):
    code = "rate-limited"
    http_status = 429
    retriable = True
    text = "Too many requests; see Retry-After."

    def __init__(self, wait: float) -> None:
        super().__init__()
        self.retry_after = max(1, math.ceil(wait))


class TooManyNewWatches(RateLimited):
    code = "too-many-new-watches"
    text = "This app has begun too many watches or dry runs within an hour; see Retry-After."


class TooManyAtOnce(DocoraError):
    code = "too-many-at-once"
    http_status = 429
    retriable = True
    retry_after = 1
    text = "Wait for the answer to this app's earlier requests of this kind."


class Busy(DocoraError):
    """This web process makes as many outgoing calls, or reads as many long bodies, as it may."""

    code = "busy"
    http_status = 503
    retriable = True
    retry_after = 5
    text = "Too many requests wait for git hosts and endpoints at the moment; see Retry-After."


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The holder of a lock, as it described itself when it took it."""

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


def with_code(code: str) -> type[DocoraError]:
    """The error that a stored code stands for; GitError for one that a newer or older Docora has written."""
    return _BY_CODE.get(code, GitError)


def sentence_for(code: str, *, times: int = 1) -> str:
    often = "" if times == 1 else f" {times} times in a row"
    return f"The repository could not be read{often}: {with_code(code).reason}."


def hint_for(code: str) -> str:
    return with_code(code).hint if code else ""


def all_errors(tree: type[DocoraError] = DocoraError) -> list[type[DocoraError]]:
    return [tree, *(error for branch in tree.__subclasses__() for error in all_errors(branch))]


_BY_CODE = {error.code: error for error in all_errors()}
