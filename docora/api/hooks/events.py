"""What a hook tells of: the repository's path and the refs that were pushed. Read only after its proof has held."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs

import orjson

from repositories.errors import Malformed
from repositories.hooks import Push

# Gitea and Forgejo send GitHub's headers beside their own.
_EVENT_HEADERS = ("X-Forgejo-Event", "X-Gitea-Event", "X-GitHub-Event", "X-Gitlab-Event", "X-Event-Key")
# By which the host lists what it has sent.
_DELIVERY_HEADERS = (
    *("X-Forgejo-Delivery", "X-Gitea-Delivery", "X-GitHub-Delivery"),
    *("X-Gitlab-Event-UUID", "X-Request-UUID", "webhook-id"),
)
# A system hook of GitLab says in its body what it tells of.
_PUSHES = {"push", "Push Hook", "Tag Push Hook", "System Hook", "repo:push"}
_GITLAB_PUSHES = {"push", "tag_push"}
# Of a GitHub App: it was installed, removed or suspended somewhere, or for other repositories than before.
_INSTALLATIONS = {"installation", "installation_repositories"}


def event_of(headers: Mapping[str, str]) -> str:
    return _first(headers, _EVENT_HEADERS)


def delivery_of(headers: Mapping[str, str]) -> str:
    return _first(headers, _DELIVERY_HEADERS)


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    return next((headers[name] for name in names if headers.get(name)), "")


def is_push(event: str) -> bool:
    return event in _PUSHES


def is_about_installations(event: str) -> bool:
    return event in _INSTALLATIONS


def read_owner(body: bytes, content_type: str) -> str:
    """The account whose repositories an installation is for."""
    installation = _dictionary(_parse(body, content_type).get("installation"))
    return _text(_dictionary(installation.get("account")).get("login"))


def read_push(body: bytes, content_type: str) -> Push:
    """A push of nothing but deletions, or a system hook about something else, has no refs."""
    payload = _parse(body, content_type)
    repository = _dictionary(payload.get("repository")) | _dictionary(payload.get("project"))
    path = repository.get("path_with_namespace") or repository.get("full_name")
    return Push(
        path=path if isinstance(path, str) else "",
        refs=frozenset(_refs(payload)),
        default_branch=_text(repository.get("default_branch")),
    )


def _parse(body: bytes, content_type: str) -> dict[str, Any]:
    """JSON, or a form whose field `payload` is JSON, which GitHub can be told to send."""
    text: bytes | str = body
    if content_type.startswith("application/x-www-form-urlencoded"):
        text = next(iter(parse_qs(body.decode(errors="replace")).get("payload", [])), "")
    try:
        payload = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Malformed("The body is not JSON.") from None
    if not isinstance(payload, dict):
        raise Malformed("The body is not a JSON object.")
    return payload


def _refs(payload: dict[str, Any]) -> Iterator[str]:
    if "push" in payload:
        yield from _refs_of_bitbucket(_dictionary(payload["push"]).get("changes"))
    # GitLab names the kind in the body; of the others only the header does.
    elif _text(payload.get("event_name", "push")) in _GITLAB_PUSHES and not _deletes(payload):
        yield _text(payload.get("ref"))


def _deletes(payload: dict[str, Any]) -> bool:
    after = _text(payload.get("after"))
    return payload.get("deleted") is True or (after != "" and not after.strip("0"))


def _refs_of_bitbucket(changes: object) -> Iterator[str]:
    for change in changes if isinstance(changes, list) else []:
        new = _dictionary(_dictionary(change).get("new"))  # null: deleted
        folders = {"branch": "heads", "tag": "tags"}
        if (folder := folders.get(_text(new.get("type")))) and new.get("name"):
            yield f"refs/{folder}/{_text(new['name'])}"


def _dictionary(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
