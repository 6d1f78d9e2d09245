"""The operator's GitHub App: tokens of one hour for the apps that the operator has granted a repository.

A watch without a token of its own reads with such a token. The grant is looked up first: for an app that has none,
GitHub is not asked, and the answer is the one that it would get without a GitHub App.

A token reads the contents of one repository. It is kept in Redis, encrypted, and replaced ten minutes before it ends.
"""

from collections.abc import Iterable

from django.conf import settings

from repositories.base import queue
from repositories.base.crypto import WrongKeys, decrypt, encrypt
from repositories.git.urls import RemoteUrl
from repositories.github_app import _api
from repositories.models import App, GitHubGrant

__all__ = ["forget_token", "git_address", "granted", "kept_token", "serves", "token_for", "token_of_installation"]

_KEPT = "docora:github-app-token:"
_RENEWED_BEFORE_ITS_END = 600
# Seconds for which the answer "not installed there" is kept, so that each look does not ask again.
_NOT_INSTALLED_FOR = 60


def git_address() -> str:
    """The host on which the GitHub App reads; empty if there is none."""
    return _api.git_address() if settings.GITHUB_APP_ID else ""


def serves(remote: RemoteUrl) -> bool:
    return remote.address == git_address()


def granted(remote: RemoteUrl, apps: Iterable[int]) -> set[int]:
    """Which of these apps, by their primary keys, may read the repository through the GitHub App."""
    if not serves(remote):
        return set()
    owner, name = remote.owner.lower(), remote.name.lower()
    grants = GitHubGrant.objects.filter(app__in=list(apps), pattern__in=[f"{owner}/*", f"{owner}/{name}"])
    return set(grants.values_list("app_id", flat=True))


def token_for(app: App, remote: RemoteUrl) -> str:
    """Empty if the app has no grant for the repository, or the GitHub App is not installed there."""
    return token_of_installation(remote) if granted(remote, [app.pk]) else ""


def token_of_installation(remote: RemoteUrl) -> str:
    """The kept token, or a new one; empty if the GitHub App is not installed there. HostUnavailable if GitHub fails."""
    kept = kept_token(remote)
    if kept is not None:
        return kept
    made = _api.make_token(remote.owner, remote.name)
    seconds = made.seconds - _RENEWED_BEFORE_ITS_END if made else _NOT_INSTALLED_FOR
    if seconds > 0:
        value = encrypt(made.token) if made else ""
        queue.connection().set(_key(remote), value, px=round(seconds * 1000))
    return made.token if made else ""


def kept_token(remote: RemoteUrl) -> str | None:
    """What is known without asking GitHub; None if nothing is."""
    kept = queue.connection().get(_key(remote))
    if not isinstance(kept, bytes):
        return None
    try:
        return decrypt(kept.decode()) if kept else ""
    except WrongKeys:  # the keys were changed since
        return None


def forget_token(remote: RemoteUrl) -> None:
    """The next question makes a new one: GitHub may have withdrawn this one before its end."""
    queue.connection().delete(_key(remote))


def _key(remote: RemoteUrl) -> str:
    return f"{_KEPT}{remote.clone_key}"
