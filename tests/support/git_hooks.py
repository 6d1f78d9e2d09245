"""Push hooks as each git host sends them: its headers, its proof, the shape of its documented payload."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from django.http import HttpResponse
from django.test import Client
from django.utils.datastructures import CaseInsensitiveMapping

from docora.api.hooks.together import HooksTogether
from docora.short_requests import SHORT, ShortRequest

ZERO = "0" * 40
_BEFORE, _AFTER = "6113728f27ae82c7b1a177c8d03f9e96e0adf246", "59b20b8d5c6ff8d09518454d4dd8b7b30f095ab5"
_DELIVERY = "f6266f16-1bf3-46a5-9ea4-602e06ead473"


@dataclass(frozen=True, slots=True)
class Sent:
    body: bytes
    headers: Mapping[str, str]

    def without_proof(self) -> "Sent":
        proofs = ("signature", "x-gitlab-token")
        kept = {name: value for name, value in self.headers.items() if not any(p in name.lower() for p in proofs)}
        return Sent(self.body, kept)

    def to(self, url: str) -> HttpResponse:
        """As the web server has it answered: a short one by itself here, together with others in a burst."""
        return self.to_django(url) if len(self.body) > SHORT else self._to_answerer(url)

    def to_django(self, url: str, client: Client | None = None) -> HttpResponse:
        content_type = self.headers["Content-Type"]
        answer: HttpResponse = (client or Client(enforce_csrf_checks=True)).generic(  # type: ignore[assignment]
            "POST", _path(url), self.body, content_type=content_type, headers=dict(self.headers)
        )
        return answer

    def short(self, url: str) -> ShortRequest:
        headers = CaseInsensitiveMapping({"Host": "testserver", **self.headers})
        return ShortRequest(
            path=_path(url), headers=headers, body=self.body, remote_address="127.0.0.1", arrived=time.monotonic()
        )

    def _to_answerer(self, url: str) -> HttpResponse:
        answerer, request = HooksTogether(), self.short(url)
        if not answerer.takes("POST", request.path, request.headers):
            return self.to_django(url)
        [answer] = answerer.answer_all([request])
        if answer.then:
            answer.then()
        return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))


def _path(url: str) -> str:
    return "/hooks/" + url.rpartition("/hooks/")[2]


def sign(secret: str, body: bytes) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def _payload_of_github(path: str, ref: str, *, after: str, default_branch: str) -> dict[str, Any]:
    owner, _, name = path.rpartition("/")
    return {
        "ref": ref,
        "before": _BEFORE,
        "after": after,
        "repository": {
            "id": 186853002,
            "name": name,
            "full_name": path,
            "private": False,
            "owner": {"name": owner, "login": owner, "id": 21031067},
            "html_url": f"https://git.example.com/{path}",
            "clone_url": f"https://git.example.com/{path}.git",
            "default_branch": default_branch,
        },
        "pusher": {"name": "mona", "email": "mona@example.com"},
        "sender": {"login": "mona", "id": 21031067, "type": "User"},
        "created": False,
        "deleted": after == ZERO,
        "forced": False,
        "base_ref": None,
        "compare": f"https://git.example.com/{path}/compare/6113728f27ae...000000000000",
        "commits": [
            {"id": after, "message": "Change a page", "added": [], "removed": [], "modified": ["README.md"]},
        ],
        "head_commit": None,
    }


def github(secret: str, path: str, ref: str = "refs/heads/main", *, after: str = _AFTER, event: str = "push",
           default_branch: str = "main") -> Sent:  # fmt: skip
    body = json.dumps(_payload_of_github(path, ref, after=after, default_branch=default_branch)).encode()
    return Sent(body, _headers_of_github(secret, body, event) | {"Content-Type": "application/json"})


def github_form(secret: str, path: str, ref: str = "refs/heads/main", **facts: Any) -> Sent:
    body = b"payload=" + quote(github(secret, path, ref, **facts).body).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    return Sent(body, _headers_of_github(secret, body, facts.get("event", "push")) | form)


def _headers_of_github(secret: str, body: bytes, event: str) -> dict[str, str]:
    return {
        "User-Agent": "GitHub-Hookshot/044aadd",
        "X-GitHub-Delivery": _DELIVERY,
        "X-GitHub-Event": event,
        "X-GitHub-Hook-ID": "292430182",
        # The older one, which proves nothing here.
        "X-Hub-Signature": f"sha1={hmac.new(secret.encode(), body, hashlib.sha1).hexdigest()}",
        "X-Hub-Signature-256": f"sha256={sign(secret, body)}",
    }


def _payload_of_gitea(path: str, ref: str, *, after: str, default_branch: str) -> dict[str, Any]:
    """Also Forgejo's. Unlike GitHub's it has no `deleted`."""
    owner, _, name = path.rpartition("/")
    user = {
        "id": 1,
        "login": owner,
        "login_name": "",
        "full_name": "",
        "email": "ada@noreply.localhost",
        "username": owner,
    }
    commit = {
        "id": after,
        "message": "Change a page\n",
        "url": f"https://git.example.com/{path}/commit/{after}",
        "author": {"name": "ada", "email": "ada@noreply.localhost", "username": owner},
        "timestamp": "2017-03-13T13:52:11-04:00",
        "added": None,
        "removed": None,
        "modified": ["README.md"],
    }
    return {
        "ref": ref,
        "before": _BEFORE,
        "after": after,
        "compare_url": f"https://git.example.com/{path}/compare/{_BEFORE}...{after}",
        "commits": [] if after == ZERO else [commit],
        "total_commits": 1,
        "head_commit": None if after == ZERO else commit,
        "repository": {
            "id": 140,
            "owner": user,
            "name": name,
            "full_name": path,
            "description": "",
            "empty": False,
            "private": False,
            "html_url": f"https://git.example.com/{path}",
            "clone_url": f"https://git.example.com/{path}.git",
            "default_branch": default_branch,
        },
        "pusher": user,
        "sender": user,
    }


def gitea(secret: str, path: str, ref: str = "refs/heads/main", *, after: str = _AFTER, event: str = "push",
          default_branch: str = "main") -> Sent:  # fmt: skip
    body = json.dumps(_payload_of_gitea(path, ref, after=after, default_branch=default_branch)).encode()
    names = {"X-Gitea-Event": event, "X-Gitea-Delivery": _DELIVERY, "X-Gogs-Event": event}
    proof = {"X-Gitea-Signature": sign(secret, body), "X-Gogs-Signature": sign(secret, body)}
    return Sent(body, {**_headers_of_github(secret, body, event), **names, **proof, "Content-Type": "application/json"})


def forgejo(secret: str, path: str, ref: str = "refs/heads/main", **facts: Any) -> Sent:
    sent = gitea(secret, path, ref, **facts)
    names = {"X-Forgejo-Event": facts.get("event", "push"), "X-Forgejo-Delivery": _DELIVERY}
    return Sent(sent.body, {**sent.headers, **names, "X-Forgejo-Signature": sign(secret, sent.body)})


def _payload_of_gitlab(path: str, ref: str, *, after: str, event: str, default_branch: str) -> dict[str, Any]:
    return {
        "object_kind": event,
        "event_name": event,
        "before": _BEFORE,
        "after": after,
        "ref": ref,
        "ref_protected": True,
        "checkout_sha": None if after == ZERO else after,
        "user_id": 4,
        "user_name": "John Smith",
        "project_id": 15,
        "project": {
            "id": 15,
            "name": path.rpartition("/")[2],
            "web_url": f"https://git.example.com/{path}",
            "git_http_url": f"https://git.example.com/{path}.git",
            "namespace": path.rpartition("/")[0],
            "path_with_namespace": path,
            "default_branch": default_branch,
        },
        "repository": {"name": path.rpartition("/")[2], "git_http_url": f"https://git.example.com/{path}.git"},
        "commits": [],
        "total_commits_count": 4,
    }


def gitlab(secret: str, path: str, ref: str = "refs/heads/main", *, after: str = _AFTER, event: str = "push",
           default_branch: str = "main") -> Sent:  # fmt: skip
    payload = _payload_of_gitlab(path, ref, after=after, event=event, default_branch=default_branch)
    titles = {"push": "Push Hook", "tag_push": "Tag Push Hook"}
    headers = {
        "Content-Type": "application/json",
        "X-Gitlab-Event": titles.get(event, "Issue Hook"),
        "X-Gitlab-Event-UUID": _DELIVERY,
        "X-Gitlab-Token": secret,
    }
    return Sent(json.dumps(payload).encode(), headers)


def gitlab_signed(secret: str, path: str, ref: str = "refs/heads/main", *, sent_at: float | None = None,
                  **facts: Any) -> Sent:  # fmt: skip
    sent = gitlab(secret, path, ref, **facts)
    timestamp = str(int(time.time() if sent_at is None else sent_at))
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{_DELIVERY}.{timestamp}.".encode() + sent.body, hashlib.sha256).digest()
    standard = {
        "webhook-id": _DELIVERY,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
    kept = {name: value for name, value in sent.headers.items() if name != "X-Gitlab-Token"}
    return Sent(sent.body, kept | standard)


def bitbucket(secret: str, path: str, ref: str = "refs/heads/main", *, after: str = _AFTER, event: str = "push",
              default_branch: str = "main") -> Sent:  # fmt: skip
    _, folder, name = ref.split("/", 2)
    kind = {"heads": "branch", "tags": "tag"}[folder]
    target = {"type": kind, "name": name, "target": {"type": "commit", "hash": after}}
    payload = {
        "actor": {"type": "user", "display_name": "Emma"},
        "repository": {
            "type": "repository",
            "full_name": path,
            "links": {"html": {"href": f"https://git.example.com/{path}"}},
        },
        "push": {
            "changes": [{"old": target, "new": None if after == ZERO else target, "closed": after == ZERO}],
        },
    }
    body = json.dumps(payload).encode()
    headers = {
        "Content-Type": "application/json",
        "X-Event-Key": f"repo:{event}",
        "X-Hook-UUID": "{5a7b6c1e-0000-4000-8000-000000000000}",
        "X-Request-UUID": _DELIVERY,
        "X-Hub-Signature": f"sha256={sign(secret, body)}",
    }
    return Sent(body, headers)


Sender = Callable[..., Sent]
SENDERS: dict[str, Sender] = {
    "github": github,
    "github-form": github_form,
    "gitlab": gitlab,
    "gitlab-signed": gitlab_signed,
    "gitea": gitea,
    "forgejo": forgejo,
    "bitbucket": bitbucket,
}
